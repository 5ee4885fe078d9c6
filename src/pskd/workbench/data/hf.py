"""Data sets of Hugging Face: a name on the Hub, or a folder."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pskd.errors import PskdError, installed_by
from pskd.workbench import registry
from pskd.workbench.data.columns import SPLITS, classes_of, draw_test, require_column
from pskd.workbench.data.refusing import refusing

PREFIX = "hf:"
HASHED = 1024  # bytes of each image


class TableSplit:
    """A split as a map-style data set of (image, class index) for ``from_datasets``.

    Args:
        rows: a table of ``datasets``, with an image in the column ``image``.
        targets: (N) int64.
    """

    def __init__(self, rows: Any, image: str, targets: Tensor, classes: tuple[str, ...]) -> None:
        self.rows, self.image, self.targets, self.classes = rows, image, targets, classes

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.rows[index][self.image], int(self.targets[index])

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the labels, and of each image's name, size and first bytes; reading all bytes would take long."""
        import datasets

        files = self.rows.cast_column(self.image, datasets.Image(decode=False)).with_format("arrow")
        digest = hashlib.blake2b(self.targets.numpy().data, digest_size=16)
        for batch in files.iter(batch_size=1000):
            for image in batch[self.image]:
                path, content = image["path"].as_py() or "", image["bytes"].as_buffer()
                size, start = (os.path.getsize(path), b"") if content is None else (content.size, content[:HASHED])
                digest.update(f"{os.path.basename(path)}\0{size}\0".encode())
                digest.update(start)
        return digest.hexdigest()

    def part(self, mask: Tensor) -> TableSplit:
        chosen = mask.nonzero().squeeze(1)
        return TableSplit(self.rows.select(chosen.tolist()), self.image, self.targets[chosen], self.classes)


@registry.data.register(PREFIX)
def load_hf(
    name: str,
    root: str | None = None,
    image: str | None = None,
    label: str | None = None,
    test: str | None = None,
    download: bool = False,
) -> dict[str, Any]:
    """A data set on the Hub or in its cache, one that was saved by ``save_to_disk``, or a folder of images.

    Args:
        name: hf:NAME or hf:FOLDER.
        root: a name or folder that replaces the one in ``name``, for data that was moved.
        image: the column of the images.
        label: the column of the classes.
        test: the split that results are reported on: by default test, or else a fifth of each class of train.
    """
    source = root or name.removeprefix(PREFIX)
    if not source or source == name:
        raise PskdError("data=hf: which? write data=hf:NAME, as on the Hub, or data=hf:FOLDER")
    what = f"data={PREFIX}{source}"
    parts = _read(source, what, download)
    asked = {"train": "train"} if test is None else {"train": "train", "test": test}
    for part in asked.values():
        if part not in parts:
            raise PskdError(f"{what} has no split {part}, only {', '.join(parts)}")
    names = {split: next((part for part in usual if part in parts), None) for split, usual in SPLITS.items()} | asked
    if names["val"] == names["test"]:
        names["val"] = None
    columns = parts["train"].column_names
    image, label = (require_column(*wanted, columns, what) for wanted in (("image", image), ("label", label)))
    rows = {split: parts[part] for split, part in names.items() if part is not None}
    splits = _with_classes(rows, image, label, what)
    if "test" in splits:
        return splits
    mask = draw_test(splits["train"].targets, len(splits["train"].classes))
    return {**splits, "train": splits["train"].part(~mask), "test": splits["train"].part(mask)}


def _with_classes(splits: dict[str, Any], image: str, label: str, what: str) -> dict[str, TableSplit]:
    """The splits with class indices; classes without a ClassLabel are those of all splits."""
    values: dict[str, Sequence[Any]] = {}
    for split, rows in splits.items():
        if not {image, label} <= set(rows.column_names):
            raise PskdError(f"{what}: the split {split} lacks the column {image} or {label}")
        values[split] = rows.with_format(None)[label][:]
    names = getattr(splits["train"].features[label], "names", None)
    if names is None:
        names, labels = classes_of([value for own in values.values() for value in own], what)
        parts = torch.split(labels, [len(own) for own in values.values()])
    else:
        hidden = [split for split, own in values.items() if any(value is None or value < 0 for value in own)]
        if hidden:
            raise PskdError(
                f"{what}: labels of the split {hidden[0]} are missing; report on another: data.test=validation"
            )
        parts = tuple(map(torch.tensor, values.values()))
    return {
        split: TableSplit(rows, image, part, tuple(names))
        for (split, rows), part in zip(splits.items(), parts, strict=True)
    }


def _read(source: str, what: str, download: bool) -> dict[str, Any]:
    """The splits of a data set by name. Only data is read: the library runs no code of a data set."""
    try:
        import datasets
    except ImportError as error:
        raise PskdError(f"{what} needs datasets: {installed_by('hf')}") from error
    folder = Path(source).expanduser()
    if not folder.is_dir() and not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", source):
        raise PskdError(f"{what}: there is no such folder, and it is no name of the Hub, user/name")
    if folder.is_dir() or download:
        advice = "check the folder, the name or the network"
    else:
        advice = "it is neither a folder nor in the cache of datasets, fetch it with data.download=true"
    # No network, no such name, a damaged file: the library has no common class for such errors.
    with _network(download), refusing(f"{what} cannot be read", advice, Exception):
        if (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file():
            tables = datasets.load_from_disk(str(folder))
        else:
            tables = datasets.load_dataset(str(folder.resolve()) if folder.is_dir() else source)
    return dict(tables) if isinstance(tables, datasets.DatasetDict) else {"train": tables}


@contextlib.contextmanager
def _network(allowed: bool) -> Iterator[None]:
    """Unless the network is ``allowed``, the library looks into its cache only."""
    import datasets

    before = datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = before or not allowed
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = before
