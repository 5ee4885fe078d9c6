"""Images with labelled boxes, in memory or on disk, and how they come out as batches."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pskd.errors import PskdError
from pskd.workbench.data.loading import make_in_workers
from pskd.workbench.data.view import decode, pixels

Change = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""An image (C, H, W) uint8, its boxes (M, 4) and its number (1,) as another image with its boxes."""


class Scene(NamedTuple):
    """One image as the detector sees it: uint8 (C, H, W), and its objects that count, M boxes (M, 4), labels (M,)."""

    image: Tensor
    boxes: Tensor
    labels: Tensor


@dataclass(frozen=True, eq=False)
class SceneSplit:
    """N images with M objects in all; image i has the objects ``offsets[i]:offsets[i + 1]``.

    Args:
        names: of the image files, relative to ``source``; of images in memory anything.
        source: the folder, or the images themselves as (N, C, H, W) uint8.
        channels: 1 (grey) or 3 (RGB).
        sizes: (N, 2) int64, heights and widths.
        offsets: (N + 1,) int64.
        boxes: (M, 4) float32, (x1, y1, x2, y2) in pixels as edges: the first pixel alone is (0, 0, 1, 1).
        labels: (M,) int64, positions among the classes.
        difficult: (M,) bool: neither trained on nor counted in the evaluation.
    """

    names: tuple[str, ...]
    source: Path | Tensor
    channels: int
    sizes: Tensor
    offsets: Tensor
    boxes: Tensor
    labels: Tensor
    difficult: Tensor

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of names, sizes and objects in their order, and of pixels that are in memory."""
        digest = hashlib.blake2b("\0".join(self.names).encode(errors="surrogateescape"), digest_size=16)
        tensors = [self.sizes, self.offsets, self.boxes, self.labels, self.difficult]
        for tensor in [*tensors, self.source] if isinstance(self.source, Tensor) else tensors:
            digest.update(tensor.contiguous().numpy().data)
        return digest.hexdigest()

    @property
    def image_of_object(self) -> Tensor:
        """(M,) int64: the number of the image that each object is in."""
        return torch.arange(len(self)).repeat_interleave(self.offsets.diff())

    def subset(self, index: Tensor) -> SceneSplit:
        """The images ``index`` (K,), in that order, numbered from 0 again."""
        counts = self.offsets.diff()[index]
        ends = counts.cumsum(0)
        objects = torch.arange(int(counts.sum())) + (self.offsets[index] - ends + counts).repeat_interleave(counts)
        return replace(
            self,
            names=tuple(self.names[i] for i in index.tolist()),
            source=self.source[index] if isinstance(self.source, Tensor) else self.source,
            sizes=self.sizes[index],
            offsets=torch.cat((ends.new_zeros(1), ends)),
            boxes=self.boxes[objects],
            labels=self.labels[objects],
            difficult=self.difficult[objects],
        )

    def pixels(self, index: int) -> Tensor:
        """One image as it is, uint8 (C, H, W)."""
        if isinstance(self.source, Tensor):
            return self.source[index]
        path = self.source / self.names[index]
        image = pixels(decode(path, self.channels))
        height, width = image.shape[1:]
        if [height, width] != (noted := self.sizes[index].tolist()):
            raise PskdError(
                f"'{path}' has {width} x {height} pixels, its annotation says {noted[1]} x {noted[0]}: "
                "the boxes would not fit, correct one of them"
            )
        return image

    def batches(self, plan: Sequence[Tensor], change: Change, *, workers: int = 0) -> Iterator[list[Scene]]:
        """One list of scenes for each (B,) tensor of image numbers in ``plan``, on the CPU.

        ``workers`` processes decode files ahead of the training; images in memory need none.
        """
        if isinstance(self.source, Tensor):
            workers = 0
        return make_in_workers(partial(self._open_batch, change), [index.numpy() for index in plan], workers)

    def _open_batch(self, change: Change, index: np.ndarray) -> list[Scene]:
        return [self._open(number, change) for number in torch.from_numpy(index).view(-1, 1)]

    def _open(self, index: Tensor, change: Change) -> Scene:
        number = int(index)
        objects = slice(int(self.offsets[number]), int(self.offsets[number + 1]))
        counts = ~self.difficult[objects]
        boxes, labels = self.boxes[objects][counts], self.labels[objects][counts]
        return Scene(*change(self.pixels(number), boxes, index), labels)
