"""Random erasing: a box of some images is blank."""

from __future__ import annotations

from torch import Tensor

from pskd.random import uniform
from pskd.workbench.augment.geometry import ATTEMPTS, random_boxes
from pskd.workbench.augment.regions import between, blank

AREA, RATIO = (0.02, 1 / 3), (0.3, 10 / 3)  # of the authors


def erase(images: Tensor, index: Tensor, *, seed: int, epoch: int, probability: float) -> Tensor:
    """Blank a box of each image, with this probability; **changes ``images``** and returns it.

    Args:
        images: (B, C, H, W), normalised.
        index: (B) int64, the samples' numbers in their data set.

    Reference: Zhong, Zheng, Kang, Li, Yang: Random Erasing Data Augmentation, AAAI 2020.
    """
    height, width = images.shape[2:]
    numbers = uniform(index, seed=seed, epoch=epoch, stream="erase", draws=2 * ATTEMPTS + 3)
    top, left, tall, wide = random_boxes(numbers[:, 1:], height, width, AREA, RATIO).unbind(1)
    rows = between(top, tall, height) & (numbers[:, :1] < probability)
    return blank(images, rows, between(left, wide, width))
