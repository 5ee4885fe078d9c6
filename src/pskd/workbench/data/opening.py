"""Many images to predict, opened ahead in batches; one that cannot be read does not stop the others."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pskd.errors import PskdError
from pskd.workbench.data.folder import is_image, raise_error
from pskd.workbench.data.items import source_of
from pskd.workbench.data.loading import make_in_workers
from pskd.workbench.data.refusing import refusing
from pskd.workbench.data.view import View

BATCH = 64  # images that a model sees at a time
MANY = 2 * BATCH  # images for which it pays to start worker processes
WORKERS = 4  # at most, unless a number is given


class OpenedImages(NamedTuple):
    """Some inputs: the pixels (M, C, H, W) uint8 of those that could be read, and for each its error or None."""

    names: list[str]
    pixels: Tensor
    errors: list[str | None]


def open_in_batches(
    inputs: Sequence[Any], view: View, batch_size: int = BATCH, workers: int | None = None
) -> Iterator[OpenedImages]:
    """The inputs (files, PIL images, tensors, arrays) in their order, ``batch_size`` at a time, cut to the view.

    ``workers`` processes open them ahead; 0 opens them here. By default there are some if there are many inputs.
    """
    if workers is None:
        workers = min(WORKERS, os.cpu_count() or 1) if len(inputs) >= MANY else 0
    tasks = [range(len(inputs))[start : start + batch_size] for start in range(0, len(inputs), batch_size)]
    return make_in_workers(_Opening(inputs, view), tasks, workers)


@dataclass(frozen=True)
class _Opening:
    inputs: Sequence[Any]
    view: View

    def __call__(self, numbers: range) -> OpenedImages:
        names: list[str] = []
        images: list[Tensor] = []
        errors: list[str | None] = []
        for number in numbers:
            names.append(name_of(self.inputs[number], number))
            try:
                images.append(self.view.open(source_of(self.inputs[number], names[-1])))
                errors.append(None)
            except PskdError as error:
                errors.append(str(error))
        nothing = torch.zeros(0, self.view.channels, *self.view.size, dtype=torch.uint8)
        return OpenedImages(names, torch.stack(images) if images else nothing, errors)


def name_of(value: Any, number: int) -> str:
    """The name of an input in its answer: its file, or its number."""
    return os.fspath(value) if isinstance(value, str | os.PathLike) else f"image {number}"


def list_images(names: Sequence[str]) -> list[str]:
    """The names of files; a folder is replaced by the images below it, in alphabetical order."""
    files: list[str] = []
    for name in names:
        files += _images_below(Path(name)) if os.path.isdir(name) else [name]
    return files


def _images_below(folder: Path) -> list[str]:
    with refusing(None, "make it readable, or leave it out", OSError):
        walk = os.walk(folder, onerror=raise_error)
        images = sorted(os.path.join(place, file) for place, _, files in walk for file in files if is_image(file))
    if not images:
        raise PskdError(f"'{folder}' holds no image")
    return images
