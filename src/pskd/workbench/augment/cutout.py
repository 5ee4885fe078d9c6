"""Cutout: a square of every image is blank."""

from __future__ import annotations

from torch import Tensor

from pskd.errors import PskdError
from pskd.random import uniform
from pskd.workbench.augment.mixing import band, box, check_batch


def cutout(
    images: Tensor, index: Tensor, *, seed: int, epoch: int, hole: int = 8, apply: Tensor | None = None
) -> Tensor:
    """Set one square of each image to 0, the mean colour after normalisation; **changes ``images``** and returns it.

    Its centre lies on any pixel with equal probability, and what is outside the image is clipped.

    Args:
        images: (B, C, H, W), normalised, in any memory format.
        index: (B) int64, the samples' numbers in their data set.
        hole: side of the square in pixels. The paper, on CIFAR-100: 8.
        apply: (B) bool, which images get a hole; None means all.

    Reference: DeVries, Taylor: Improved Regularization of Convolutional Neural Networks with Cutout, 2017.
    """
    check_batch(images, index, apply)
    height, width = images.shape[2:]
    if not 1 <= hole <= min(height, width):
        raise PskdError(f"hole must be 1 to {min(height, width)} pixels for images of {height} x {width}, got {hole}")
    centre = uniform(index.to(images.device), seed=seed, epoch=epoch, stream="cutout", draws=2)
    rows, columns = band(centre[:, 0], hole, height), band(centre[:, 1], hole, width)
    if apply is not None:
        rows &= apply.to(images.device)[:, None]
    view, inside = box(images, rows, columns)
    view.addcmul_(view, inside, value=-1)  # x - x * inside, without one more tensor of the batch's size
    return images
