"""The samples of one split, in memory or on disk, and how they come out as batches."""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from pskd.errors import PskdError
from pskd.tensors import Reused
from pskd.workbench.data.loading import Augment, opened
from pskd.workbench.data.pictures import FromSource, Picture
from pskd.workbench.data.view import Source, View, shorter_side


class Batch(NamedTuple):
    """What the model sees: all on one device, all of the same length B."""

    inputs: Tensor  # (B, C, H, W) float32, normalised
    labels: Tensor  # (B,) int64
    index: Tensor  # type: ignore[assignment]  # (B,) int64, the samples' numbers in their split


@dataclass(frozen=True, eq=False)
class InMemory:
    """A small split as tensors, which move to the training device once; a whole batch is augmented at a time.

    Args:
        images: (N, C, H, W) uint8.
        labels: (N,) int64.
        view: the images' size and normalisation.
    """

    images: Tensor
    labels: Tensor
    view: View
    _copies: dict[torch.device, tuple[Tensor, Tensor]] = field(default_factory=dict, repr=False, init=False)

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all pixels and labels in their order."""
        digest = hashlib.blake2b(repr(tuple(self.images.shape)).encode(), digest_size=16)
        digest.update(self.images.contiguous().numpy().data)
        digest.update(self.labels.contiguous().numpy().data)
        return digest.hexdigest()

    def pixels(self, index: int) -> Tensor:
        """One image, uint8 (C, H, W)."""
        return self.images[index]

    def subset(self, index: Tensor) -> InMemory:
        """The samples ``index`` (M,), in that order, numbered anew from 0."""
        return InMemory(self.images[index], self.labels[index], self.view)

    def batches(
        self,
        plan: Sequence[Tensor],
        *,
        augment: Augment | None = None,
        seed: int = 0,
        epoch: int = 0,
        device: str | torch.device = "cpu",
        workers: int = 0,
    ) -> Iterator[Batch]:
        """One batch for each (B,) tensor of sample numbers in ``plan``; unchanged views without ``augment``.

        ``workers`` is there for splits on disk; here nothing is left for them to do.
        """
        device = torch.device(device)
        if device not in self._copies:
            self._copies[device] = self.images.to(device), self.labels.to(device)
        images, labels = self._copies[device]
        for index in plan:
            index = index.to(device, non_blocking=True)
            chosen = images.index_select(0, index)
            inputs = augment(chosen, index, seed=seed, epoch=epoch) if augment else self.view.normalize(chosen)
            yield Batch(inputs, labels.index_select(0, index), index)


class Opened(ABC):
    """A split whose images are opened one by one and cut to one size by worker processes; the rest is done by batch."""

    labels: Tensor  # (N,) int64
    view: View  # what evaluation sees of an image
    together = 8  # images whose crops are drawn together: as many may be in memory whole
    lasting = False  # workers may stay from one epoch to the next: no code of a user runs in them that could tell

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def source(self, index: int) -> Source:
        """Where the image of a sample is read from."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """A hash of what identifies each sample, in their order."""

    @abstractmethod
    def subset(self, index: Tensor) -> Opened:
        """The samples ``index`` (M,), in that order, numbered anew from 0."""

    def identities(self) -> Iterator[bytes] | None:
        """What tells each image from all others and from a changed one; None: it may be another each time."""
        return None

    def picture(self, index: int) -> Picture:
        """The image of a sample, for a view of it or a crop."""
        return FromSource(self.source(index), self.view)

    def pixels(self, index: int) -> Tensor:
        """One image as evaluation sees it, uint8 (C, H, W)."""
        return self.picture(index).seen()

    def batches(
        self,
        plan: Sequence[Tensor],
        *,
        augment: Augment | None = None,
        seed: int = 0,
        epoch: int = 0,
        device: str | torch.device = "cpu",
        workers: int = 0,
    ) -> Iterator[Batch]:
        """One batch for each (B,) tensor of sample numbers in ``plan``; unchanged views without ``augment``.

        ``workers`` processes decode files ahead of the training; 0 decodes them here. The batches are the same.
        """
        device = torch.device(device)
        memory, pinned = Reused(), device.type == "cuda"

        def batch(index: Tensor, images: Tensor) -> Batch:
            labels = self.labels[index].to(device, non_blocking=True)
            # What is not pinned is written again by the workers, and has to have arrived before.
            index, images = index.to(device, non_blocking=True), images.to(device, non_blocking=pinned)
            out = memory.empty(images.shape, device)
            if augment:
                return Batch(augment(images, index, seed=seed, epoch=epoch, opened=True, out=out), labels, index)
            return Batch(self.view.normalize(images, out), labels, index)

        made = opened(self, plan, augment, seed=seed, epoch=epoch, workers=workers, pinned=pinned)
        yield from map(batch, plan, made)


@dataclass(frozen=True, eq=False)
class OnDisk(Opened):
    """A split of image files.

    Args:
        paths: N file names relative to ``root``.
        labels: (N,) int64.
        root: the data set's folder.
        view: what evaluation sees of an image.
    """

    paths: tuple[str, ...]
    labels: Tensor
    root: Path
    view: View
    lasting = True

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all relative paths, file sizes and labels in their order."""
        digest = hashlib.blake2b(digest_size=16)
        for path, label in zip(self.paths, self.labels.tolist(), strict=True):
            digest.update(f"{path}\0{self._found(path).st_size}\0{label}\n".encode(errors="surrogateescape"))
        return digest.hexdigest()

    def identities(self) -> Iterator[bytes]:
        for path in self.paths:
            found = self._found(path)
            yield f"{path}\0{found.st_size}\0{found.st_mtime_ns}".encode(errors="surrogateescape")

    def _found(self, path: str) -> os.stat_result:
        try:
            return os.stat(self.root / path)
        except OSError as error:
            raise PskdError(f"cannot read image '{self.root / path}' ({error.strerror}): restore it") from error

    def subset(self, index: Tensor) -> OnDisk:
        return OnDisk(tuple(self.paths[i] for i in index.tolist()), self.labels[index], self.root, self.view)

    def source(self, index: int) -> Path:
        return self.root / self.paths[index]


Split = InMemory | Opened


def typical_side(split: Split, looked_at: int = 9) -> int | None:
    """The median of the shorter sides of some images, before they are scaled to the view; None: they are not scaled."""
    if isinstance(split, InMemory) or not len(split):
        return None
    places = torch.linspace(0, len(split) - 1, min(looked_at, len(split))).long().tolist()
    sides = sorted(side for place in places if (side := shorter_side(split.source(place))) is not None)
    return sides[len(sides) // 2] if sides else None
