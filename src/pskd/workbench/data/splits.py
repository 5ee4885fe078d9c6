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
from pskd.workbench.buffers import Reused
from pskd.workbench.data.loading import Augmentation, open_batches
from pskd.workbench.data.pictures import Picture
from pskd.workbench.data.view import Source, View, shorter_side


class ImageBatch(NamedTuple):
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
        """The samples ``index`` (M,), in that order, numbered from 0 again."""
        return InMemory(self.images[index], self.labels[index], self.view)

    def batches(
        self,
        plan: Sequence[Tensor],
        *,
        augment: Augmentation | None = None,
        seed: int = 0,
        epoch: int = 0,
        device: str | torch.device = "cpu",
        workers: int = 0,
    ) -> Iterator[ImageBatch]:
        """One batch for each (B,) tensor of sample numbers in ``plan``; unchanged views without ``augment``.

        Images in memory need no ``workers``.
        """
        device = torch.device(device)
        if device not in self._copies:
            self._copies[device] = self.images.to(device), self.labels.to(device)
        images, labels = self._copies[device]
        for numbers in plan:
            index = numbers.to(device, non_blocking=True)
            chosen = images.index_select(0, index)
            inputs = augment(chosen, numbers, seed=seed, epoch=epoch) if augment else self.view.normalize(chosen)
            yield ImageBatch(inputs, labels.index_select(0, index), index)


class OpenedSplit(ABC):
    """A split whose images worker processes open one by one and cut to one size; the rest is done by batch."""

    labels: Tensor  # (N,) int64
    view: View  # what evaluation sees of an image
    together = 8  # images whose crops are drawn together, so that as many are in memory whole
    lasting = False  # whether workers may stay for the next epoch; not if they run a user's code, which may have state

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
    def subset(self, index: Tensor) -> OpenedSplit:
        """The samples ``index`` (M,), in that order, numbered from 0 again."""

    def identities(self) -> Iterator[bytes] | None:
        """What tells each image from all others and from its earlier versions; None: it may be another each time."""
        return None

    def picture(self, index: int) -> Picture:
        """The image of a sample, to be seen whole or cropped."""
        return Picture(self.source(index), self.view)

    def pixels(self, index: int) -> Tensor:
        """One image as evaluation sees it, uint8 (C, H, W)."""
        return self.picture(index).seen()

    def batches(
        self,
        plan: Sequence[Tensor],
        *,
        augment: Augmentation | None = None,
        seed: int = 0,
        epoch: int = 0,
        device: str | torch.device = "cpu",
        workers: int = 0,
    ) -> Iterator[ImageBatch]:
        """One batch for each (B,) tensor of sample numbers in ``plan``; unchanged views without ``augment``.

        ``workers`` processes decode files ahead of the training; 0 decodes them here. The batches are the same.
        """
        device = torch.device(device)
        memory, pinned = Reused(), device.type == "cuda"

        def batch(index: Tensor, images: Tensor) -> ImageBatch:
            labels = self.labels[index].to(device, non_blocking=True)
            # Workers write again to memory that is not pinned, so its copy must be complete.
            index, images = index.to(device, non_blocking=True), images.to(device, non_blocking=pinned)
            out = memory.empty(images.shape, device)
            if augment:
                return ImageBatch(augment(images, index, seed=seed, epoch=epoch, opened=True, out=out), labels, index)
            return ImageBatch(self.view.normalize(images, out), labels, index)

        images = open_batches(self, plan, augment, seed=seed, epoch=epoch, workers=workers, pinned=pinned)
        yield from map(batch, plan, images)


@dataclass(frozen=True, eq=False)
class OnDisk(OpenedSplit):
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
            digest.update(f"{path}\0{self._stat(path).st_size}\0{label}\n".encode(errors="surrogateescape"))
        return digest.hexdigest()

    def identities(self) -> Iterator[bytes]:
        for path in self.paths:
            stat = self._stat(path)
            yield f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}".encode(errors="surrogateescape")

    def _stat(self, path: str) -> os.stat_result:
        try:
            return os.stat(self.root / path)
        except OSError as error:
            raise PskdError(f"cannot read image '{self.root / path}' ({error.strerror}): restore it") from error

    def subset(self, index: Tensor) -> OnDisk:
        return OnDisk(tuple(self.paths[i] for i in index.tolist()), self.labels[index], self.root, self.view)

    def source(self, index: int) -> Path:
        return self.root / self.paths[index]


Split = InMemory | OpenedSplit


def typical_side(split: Split) -> int | None:
    """The median of the shorter sides of some image files; None: images are in memory, or none can be read."""
    if isinstance(split, InMemory) or not len(split):
        return None
    sides = sorted(side for place in _spread(split, 9) if (side := shorter_side(split.source(place))) is not None)
    return sides[len(sides) // 2] if sides else None


def share_inside(samples: Split, others: Split) -> float:
    """The share of the samples whose image is, byte for byte, one of the others; only some samples are compared.

    Images that are neither in memory nor files of their own cannot be compared: 0.
    """
    places = _spread(samples, 200)
    if isinstance(samples, InMemory) and isinstance(others, InMemory):
        wanted = [_digest(samples.images[place].numpy().tobytes()) for place in places]
        there = {_digest(image.tobytes()) for image in others.images.numpy()}
    elif isinstance(samples, OnDisk) and isinstance(others, OnDisk):
        paths = [samples.source(place) for place in places]
        sizes = {path.stat().st_size for path in paths}
        # Only files of the same size are read: of photos, hardly one.
        alike = [path for path in map(others.source, range(len(others))) if path.stat().st_size in sizes]
        wanted, there = [_digest(path.read_bytes()) for path in paths], {_digest(path.read_bytes()) for path in alike}
    else:
        return 0.0
    return sum(each in there for each in wanted) / max(1, len(wanted))


def _spread(split: Split, most: int) -> list[int]:
    """Sample numbers, ``most`` or all, evenly spread."""
    places: list[int] = torch.linspace(0, len(split) - 1, min(most, len(split))).long().tolist()
    return places


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()
