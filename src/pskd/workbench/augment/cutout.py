"""Cutout: a square of every image is blank."""

from __future__ import annotations

from torch import Tensor

from pskd.workbench.augment.regions import around, blank


def cutout(images: Tensor, uniform: Tensor, hole: int, apply: Tensor) -> Tensor:
    """Blank one square of each image; **changes ``images``** and returns it.

    Its centre lies on any pixel with equal probability, and what is outside the image is clipped.

    Args:
        images: (B, C, H, W), normalised, in any memory format.
        uniform: (B, 2) numbers in [0, 1): the centre.
        hole: side of the square in pixels. The paper, on CIFAR-100: 8.
        apply: (B) bool, which images get a hole.

    Reference: DeVries, Taylor: Improved Regularization of Convolutional Neural Networks with Cutout, 2017.
    """
    height, width = images.shape[2:]
    y, x = uniform.unbind(1)
    return blank(images, around(y, hole, height) & apply[:, None], around(x, hole, width))
