"""Colour changes of whole batches: float32 (B, C, H, W) in 0..255, one set of numbers per image.

Sums are taken over whole numbers, and products and sums are separate operations: an image comes out exactly the same
in any batch.
"""

from __future__ import annotations

import math
from functools import cached_property

import torch
from torch import Tensor

from pskd.tensors import constant

# The principal colours of the ImageNet training set: a row per channel, a column per component, and the components'
# standard deviations in units of the pixels' range.
_COMPONENTS = (
    (-0.5675, 0.7192, 0.4009),
    (-0.5808, -0.0045, -0.8140),
    (-0.5836, -0.6948, 0.4203),
)
_DEVIATIONS = (0.2175, 0.0188, 0.0045)
BRIGHTNESS, CONTRAST, SATURATION = range(3)
ALONE = 128 * 128  # pixels from which on an image is changed by itself on a CPU
_ORDERS = ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0))


class Jitter:
    """Brightness, contrast and saturation, each by a factor in 1 - strength .. 1 + strength, in random order.

    All three blend the image with something: black, its mean grey, its grey version. A call **changes the images** of
    one part of the batch, (B, C, H, W) float32 in 0..255 with 3 channels or 1, and returns them.

    Args:
        uniform: (B, 4) numbers in [0, 1): three factors and the order, for the whole batch.
        clamp: keep values in 0..255 after each change. CutMix's and the paper's code for ImageNet does not.
    """

    def __init__(self, uniform: Tensor, strength: float, clamp: bool = True) -> None:
        self.clamp = clamp
        self._orders = constant(_ORDERS, torch.int64, uniform.device)[(uniform[:, 3] * len(_ORDERS)).long()]
        self._factors = (1 + strength * (2 * uniform[:, :3] - 1)).gather(1, self._orders)
        self._spare = uniform.new_empty(0)

    def __call__(self, images: Tensor, part: slice = slice(None)) -> Tensor:
        if images.device.type == "cpu" and images[0, 0].numel() >= ALONE:
            for image, changes in zip(images, self._changes[part], strict=True):
                self._change_one(image, changes)
        else:
            for change, factor in zip(self._orders[part].unbind(1), self._factors[part].unbind(1), strict=True):
                self._change(images, change[:, None, None, None], factor[:, None, None, None])
        return images

    def _change(self, images: Tensor, change: Tensor, factor: Tensor) -> None:
        grey = _grey(images, *images.new_empty(2, len(images), 1, *images.shape[2:]))
        other = (change == CONTRAST) * _mean(grey.round()) + (change == SATURATION) * grey
        images.mul_(factor).add_(other * (1 - factor))
        if self.clamp:
            images.clamp_(0, 255)

    @cached_property
    def _changes(self) -> list[list[tuple[int, float, float]]]:
        """For each image its changes in their order: which, its factor, and 1 - factor as a float32 has it."""
        columns = (self._orders.tolist(), self._factors.tolist(), (1 - self._factors).tolist())
        return [list(zip(*image, strict=True)) for image in zip(*columns, strict=True)]

    def _change_one(self, image: Tensor, changes: list[tuple[int, float, float]]) -> None:
        """As `_change`, in the same steps, with numbers instead of tensors and in memory that is used again.

        On a large image, which fills a processor's cache, this takes half the time.
        """
        if self._spare.shape[3:] != image.shape[1:]:
            self._spare = image.new_empty(2, 1, 1, *image.shape[1:])
        grey, spare = self._spare
        for change, factor, rest in changes:
            if change != BRIGHTNESS:
                _grey(image[None], grey, spare)
            if change == CONTRAST:
                more = float(_mean(torch.round(grey, out=spare)) * rest)
            image *= factor
            if change == CONTRAST:
                image += more
            elif change == SATURATION:
                image += grey[0].mul_(rest)
            if self.clamp:
                image.clamp_(0, 255)


def _mean(whole: Tensor) -> Tensor:
    """The mean (B, 1, 1, 1) of whole numbers (B, 1, H, W) in float32."""
    # Sums of whole numbers are exact in any order, and those of a row of up to so many pixels in float32 too, which is
    # four times as fast.
    rows = whole.sum(dim=3, dtype=None if whole.shape[3] <= 4096 else torch.int64)
    return rows.sum(dim=(1, 2), dtype=torch.int64)[:, None, None, None] / whole[0].numel()


def _grey(images: Tensor, out: Tensor, spare: Tensor) -> Tensor:
    """Luma by the weights of ITU-R BT.601, written to ``out``, with the help of ``spare``; both are (B, 1, H, W)."""
    if images.shape[1] == 1:
        return out.copy_(images)
    red, green, blue = images.chunk(3, 1)
    torch.mul(red, 0.299, out=out)
    out += torch.mul(green, 0.587, out=spare)
    out += torch.mul(blue, 0.114, out=spare)
    return out


def lighting(images: Tensor, uniform: Tensor, strength: float) -> Tensor:
    """Add to all pixels of an image a normal random amount of each principal colour (AlexNet's augmentation).

    **Changes ``images``** and returns it.

    Args:
        images: (B, 3, H, W) float32 in 0..255.
        uniform: (B, 6) numbers in [0, 1).
        strength: the standard deviation, as a part of the data set's own.
    """
    radius = (-2 * torch.log1p(-uniform[:, :3])).sqrt()
    normal = radius * torch.cos(2 * math.pi * uniform[:, 3:])
    amounts = normal * constant(_DEVIATIONS, torch.float32, images.device) * (255 * strength)
    shift = (amounts[:, None, :] * constant(_COMPONENTS, torch.float32, images.device)).sum(dim=2)  # (B, 3)
    return images.add_(shift[:, :, None, None])
