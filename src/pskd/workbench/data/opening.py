"""Many images of strangers, opened ahead in batches; one that cannot be read spoils no other."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from pskd.errors import PskdError
from pskd.workbench.data.folder import readable_suffixes
from pskd.workbench.data.items import source_of
from pskd.workbench.data.loading import shield_from_signals
from pskd.workbench.data.reason import reason
from pskd.workbench.data.view import View

BATCH = 64  # images that a model sees at a time
MANY = 2 * BATCH  # images for which it pays to start worker processes
WORKERS = 4  # at most, where nothing else is said


class OpenedImages(NamedTuple):
    """Some of the inputs: the pixels (M, C, H, W) uint8 of those that could be read, and what is wrong with others."""

    names: list[str]
    pixels: Tensor
    errors: list[str | None]


@dataclass(frozen=True)
class _Openings(Dataset[OpenedImages]):
    inputs: Sequence[Any]
    view: View
    batch_size: int

    def __len__(self) -> int:
        return -(-len(self.inputs) // self.batch_size)

    def __getitem__(self, batch: int) -> OpenedImages:
        first = batch * self.batch_size
        names: list[str] = []
        images: list[Tensor] = []
        errors: list[str | None] = []
        for place, value in enumerate(self.inputs[first : first + self.batch_size], first):
            names.append(name_of(value, place))
            try:
                images.append(self.view.open(source_of(value, names[-1])))
                errors.append(None)
            except PskdError as error:
                errors.append(str(error))
        nothing = torch.zeros(0, self.view.channels, *self.view.size, dtype=torch.uint8)
        return OpenedImages(names, torch.stack(images) if images else nothing, errors)


def opened_batches(
    inputs: Sequence[Any], view: View, batch_size: int = BATCH, workers: int | None = None
) -> Iterator[OpenedImages]:
    """The inputs (files, PIL images, tensors, arrays) in their order, ``batch_size`` at a time, cut to the view.

    ``workers`` processes open them ahead; 0 opens them here. By default there are some if there are many inputs.
    """
    if workers is None:
        workers = min(WORKERS, os.cpu_count() or 1) if len(inputs) >= MANY else 0
    todo = _Openings(inputs, view, batch_size)
    return iter(
        DataLoader(
            todo,
            batch_size=None,
            num_workers=min(workers, len(todo)),
            worker_init_fn=shield_from_signals,
            generator=torch.Generator(),
        )
    )


def name_of(value: Any, place: int) -> str:
    """What an input is called in its answer: its file, or its number."""
    return os.fspath(value) if isinstance(value, str | os.PathLike) else f"image {place}"


def with_folders(names: Sequence[str]) -> list[str]:
    """The names, a folder's replaced by the image files below it in alphabetical order."""
    files: list[str] = []
    for name in names:
        files += _images_below(Path(name)) if os.path.isdir(name) else [name]
    return files


def _images_below(folder: Path) -> list[str]:
    suffixes = readable_suffixes()

    def refuse(error: OSError) -> None:
        raise PskdError(f"cannot read '{error.filename}' ({reason(error)}): make it readable, or leave it out")

    found = sorted(
        os.path.join(inside, file)
        for inside, _, files in os.walk(folder, onerror=refuse)
        for file in files
        if os.path.splitext(file)[1].lower() in suffixes and not file.startswith(".")
    )
    if not found:
        raise PskdError(f"'{folder}' holds no image")
    return found
