"""A data set of images with its splits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pskd.workbench.data.splits import InMemory, Split
from pskd.workbench.data.view import View


@dataclass(frozen=True)
class ImageData:
    """Class names (a label is a position among them), splits, and what a model sees of an image."""

    name: str
    classes: tuple[str, ...]
    train: Split
    val: Split | None
    test: Split
    view: View

    @property
    def splits(self) -> dict[str, Split]:
        """Those that there are."""
        splits = {"train": self.train, "val": self.val, "test": self.test}
        return {name: split for name, split in splits.items() if split is not None}


def in_memory(
    name: str,
    classes: tuple[str, ...],
    *,
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    val: tuple[Tensor, Tensor] | None = None,
    statistics: tuple[tuple[float, ...], tuple[float, ...]] | None = None,
) -> ImageData:
    """A data set from (images (N, C, H, W) uint8, labels (N,) int64) pairs.

    ``statistics`` are the channels' means and standard deviations, for pixels in 0..1; by default the training set's.
    """
    _, channels, height, width = train[0].shape
    mean, std = statistics or channel_statistics(train[0])
    view = View(channels, (height, width), None, mean, std)
    given = None if val is None else InMemory(*val, view)
    return ImageData(name, classes, InMemory(*train, view), given, InMemory(*test, view), view)


def channel_statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel of (N, C, H, W) uint8 images, for pixels in 0..1."""
    channels = images.shape[1]
    # Counting the 256 values is exact, and needs no float copy of the data set.
    counts = torch.zeros(channels, 256, dtype=torch.float64)
    for start in range(0, len(images), 4096):
        for channel in range(channels):
            part = images[start : start + 4096, channel]
            counts[channel] += part.flatten().bincount(minlength=256)
    share = counts / counts.sum(dim=1, keepdim=True)
    values = torch.arange(256, dtype=torch.float64) / 255
    mean = share @ values
    std = (share * (values - mean[:, None]) ** 2).sum(dim=1).sqrt().clamp(min=1 / 255)  # a blank channel has none
    return tuple(mean.tolist()), tuple(std.tolist())
