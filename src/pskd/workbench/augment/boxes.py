"""Flips and sizes of images whose boxes move with them: pure functions of (seed, epoch, sample)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from pskd.random import uniform


@dataclass(frozen=True)
class Resize:
    """The shorter side becomes ``shorter`` pixels, or less where the longer one would pass ``longest``."""

    shorter: int
    longest: int

    def __call__(self, image: Tensor, boxes: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """An image for evaluation; its boxes still count the pixels of the image before."""
        return self.scale_image(image), boxes

    def scale_image(self, image: Tensor) -> Tensor:
        """(C, H, W) uint8 as (C, H', W') uint8."""
        height, width = image.shape[1:]
        scale = min(self.shorter / min(height, width), self.longest / max(height, width))
        size = max(1, round(height * scale)), max(1, round(width * scale))
        if size == (height, width):
            return image
        return F.interpolate(image[None], size, mode="bilinear", antialias=True)[0]


@dataclass(frozen=True)
class BoxAugment:
    """Mirror half of the images, and scale each to one of several sizes.

    Args:
        sizes: the shorter side in pixels; each image draws one.
        longest: what the longer side may be at most.
        flip: whether to mirror.
    """

    sizes: tuple[int, ...]
    longest: int
    flip: bool

    def __call__(self, image: Tensor, boxes: Tensor, index: Tensor, *, seed: int, epoch: int) -> tuple[Tensor, Tensor]:
        """One image (C, H, W) uint8 and its boxes (M, 4), (x1, y1, x2, y2) in pixels; ``index`` (1,) is its number."""
        which, mirrored = uniform(index, seed=seed, epoch=epoch, stream="scene", draws=2)[0].tolist()
        height, width = image.shape[1:]
        if self.flip and mirrored < 0.5:
            x1, y1, x2, y2 = boxes.unbind(1)
            image, boxes = image.flip(2), torch.stack((width - x2, y1, width - x1, y2), 1)
        resized = Resize(self.sizes[int(which * len(self.sizes))], self.longest).scale_image(image)
        return resized, scale_boxes(boxes, (height, width), resized.shape[1:])


def scale_boxes(boxes: Tensor, before: tuple[int, ...], after: tuple[int, ...]) -> Tensor:
    """Boxes (M, 4) of an image of the size (height, width) ``before`` in one of the size ``after``."""
    vertical, horizontal = after[0] / before[0], after[1] / before[1]
    return boxes * boxes.new_tensor((horizontal, vertical, horizontal, vertical))
