"""Random erasing: a box of some images is blank."""

from __future__ import annotations

import torch
from torch import Tensor

from pskd.random import uniform
from pskd.workbench.augment.geometry import ATTEMPTS, random_boxes
from pskd.workbench.augment.mixing import box

AREA, RATIO = (0.02, 1 / 3), (0.3, 10 / 3)  # of the authors


def erase(images: Tensor, index: Tensor, *, seed: int, epoch: int, probability: float) -> Tensor:
    """Set a box of each image, with this probability, to 0, the mean colour; **changes ``images``** and returns it.

    Args:
        images: (B, C, H, W), normalised.
        index: (B) int64, the samples' numbers in their data set.

    Reference: Zhong, Zheng, Kang, Li, Yang: Random Erasing Data Augmentation, AAAI 2020.
    """
    height, width = images.shape[2:]
    numbers = uniform(index, seed=seed, epoch=epoch, stream="erase", draws=2 * ATTEMPTS + 3)
    top, left, tall, wide = random_boxes(numbers[:, 1:], height, width, AREA, RATIO).unbind(1)
    rows = _between(top, tall, height) & (numbers[:, :1] < probability)
    view, inside = box(images, rows, _between(left, wide, width))
    view.addcmul_(view, inside, value=-1)
    return images


def _between(start: Tensor, length: Tensor, size: int) -> Tensor:
    """True (B, size) from ``start`` (B) on for ``length`` (B) places."""
    place = torch.arange(size, device=start.device)
    return (place >= start[:, None]) & (place < (start + length)[:, None])
