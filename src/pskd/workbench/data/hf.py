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
from pskd.workbench.data.columns import SPLITS, classes_of, drawn_test, needed_column
from pskd.workbench.data.reason import reason

PREFIX = "hf:"
HASHED = 1024  # bytes of each image


class Rows:
    """A split as a map-style data set of (image, class index), which ``from_datasets`` takes.

    Args:
        rows: of ``datasets``, with an image in the column ``image``.
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
        """A hash of the labels, and of each image's name, size and first bytes: all would take a pass over them."""
        import datasets

        undecoded = self.rows.cast_column(self.image, datasets.Image(decode=False)).with_format("arrow")
        digest = hashlib.blake2b(self.targets.numpy().data, digest_size=16)
        for batch in undecoded.iter(batch_size=1000):
            for image in batch[self.image]:
                path, content = image["path"].as_py() or "", image["bytes"].as_buffer()
                size, start = (os.path.getsize(path), b"") if content is None else (content.size, content[:HASHED])
                digest.update(f"{os.path.basename(path)}\0{size}\0".encode())
                digest.update(start)
        return digest.hexdigest()

    def part(self, mask: Tensor) -> Rows:
        chosen = mask.nonzero().squeeze(1)
        return Rows(self.rows.select(chosen.tolist()), self.image, self.targets[chosen], self.classes)


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
        root: takes the place of what ``name`` says, for data that was moved.
        image: the column of the images.
        label: the column of the classes.
        test: the split that results are reported on: by default test, or else a fifth of each class of train.
    """
    source = root or name.removeprefix(PREFIX)
    if not source or source == name:
        raise PskdError("data=hf: which? write data=hf:NAME, as on the Hub, or data=hf:FOLDER")
    splits = _loaded(source, download)
    chosen = {"train": _split(splits, "train", source), "val": _usual(splits, "val"), "test": _usual(splits, "test")}
    if test is not None:
        chosen["test"] = _split(splits, test, source)
    if chosen["val"] is chosen["test"]:
        chosen["val"] = None
    what = f"data={PREFIX}{source}"
    image = needed_column("image", image, chosen["train"].column_names, what)
    label = needed_column("label", label, chosen["train"].column_names, what)
    found = _labelled({split: rows for split, rows in chosen.items() if rows is not None}, image, label, what)
    if "test" not in found:
        mask = drawn_test(found["train"].targets, len(found["train"].classes))
        found = {**found, "train": found["train"].part(~mask), "test": found["train"].part(mask)}
    return found


def _labelled(splits: dict[str, Any], image: str, label: str, what: str) -> dict[str, Rows]:
    """The splits with class indices; classes without a ClassLabel are those of all splits."""
    values: dict[str, Sequence[Any]] = {}
    for split, rows in splits.items():
        if not {image, label} <= set(rows.column_names):
            raise PskdError(f"{what}: the split {split} lacks the column {image} or {label}")
        values[split] = rows.with_format(None)[label][:]
    names = getattr(splits["train"].features[label], "names", None)
    if names is not None:
        hidden = [split for split, own in values.items() if any(value is None or value < 0 for value in own)]
        if hidden:
            raise PskdError(
                f"{what}: labels of the split {hidden[0]} are missing; report on another: data.test=validation"
            )
        return {split: Rows(rows, image, torch.tensor(values[split]), tuple(names)) for split, rows in splits.items()}
    classes, labels = classes_of([value for own in values.values() for value in own], what)
    parts = torch.split(labels, [len(own) for own in values.values()])
    return {split: Rows(rows, image, part, classes) for (split, rows), part in zip(splits.items(), parts, strict=True)}


def _usual(splits: dict[str, Any], what: str) -> Any:
    return next((splits[name] for name in SPLITS[what] if name in splits), None)


def _split(splits: dict[str, Any], name: str, source: str) -> Any:
    if name not in splits:
        raise PskdError(f"data={PREFIX}{source} has no split {name}, only {', '.join(splits)}")
    return splits[name]


def _loaded(source: str, download: bool) -> dict[str, Any]:
    """The splits of a data set by name. Only data is read: the library runs no code of a data set."""
    try:
        import datasets
    except ImportError as error:
        raise PskdError(f"data={PREFIX}{source} needs datasets: {installed_by('hf')}") from error
    folder = Path(source).expanduser()
    if not folder.is_dir() and not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", source):
        raise PskdError(f"data={PREFIX}{source}: there is no such folder, and it is no name of the Hub, user/name")
    try:
        with _network(download):
            if (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file():
                found = datasets.load_from_disk(str(folder))
            else:
                found = datasets.load_dataset(str(folder.resolve()) if folder.is_dir() else source)
    except Exception as error:  # no network, no such name, a damaged file: the library has no common class for them
        if folder.is_dir() or download:
            raise PskdError(f"data={PREFIX}{source} cannot be read: {reason(error)}") from error
        raise PskdError(
            f"data={PREFIX}{source} is neither a folder nor in the cache of datasets: fetch it with data.download=true"
        ) from error
    return dict(found) if isinstance(found, datasets.DatasetDict) else {"train": found}


@contextlib.contextmanager
def _network(allowed: bool) -> Iterator[None]:
    """The library looks into its cache only, unless the network is ``allowed``."""
    import datasets

    before = datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = before or not allowed
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = before
