"""Colour changes of whole batches: float32 (B, C, H, W) in 0..255, one set of numbers per image.

Sums are taken over whole numbers and products and sums are separate operations, so that an image comes out the same to
the bit in whatever batch it stands.
"""

from __future__ import annotations

import math

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


def jitter(images: Tensor, uniform: Tensor, strength: float, clamp: bool = True) -> Tensor:
    """Brightness, contrast and saturation, each by a factor in 1 - strength .. 1 + strength, in random order.

    All three blend the image with something: black, its mean grey, its grey version.

    Args:
        images: (B, C, H, W) float32 in 0..255, C = 3 or 1.
        uniform: (B, 4) numbers in [0, 1): three factors and the order.
        clamp: keep values in 0..255 after each change. CutMix's and the paper's code for ImageNet does not.
    """
    return Jitter(uniform, strength, clamp)(images.clone())


class Jitter:
    """``jitter`` with the numbers of a batch, whose images come in parts; **changes these** and returns them."""

    def __init__(self, uniform: Tensor, strength: float, clamp: bool = True) -> None:
        self.clamp = clamp
        self.factors = 1 + strength * (2 * uniform[:, :3] - 1)
        self.orders = constant(_ORDERS, torch.int64, uniform.device)[(uniform[:, 3] * len(_ORDERS)).long()]
        self._lists: list[list[tuple[int, float, float]]] | None = None
        self._spare = uniform.new_empty(0)

    def __call__(self, images: Tensor, part: slice = slice(None)) -> Tensor:
        if images.device.type == "cpu" and images[0, 0].numel() >= ALONE:
            for image, changes in zip(images, self._changes()[part], strict=True):
                self._change_one(image, changes)
        else:
            self._change(images, self.factors[part], self.orders[part])
        return images

    def _change(self, images: Tensor, factors: Tensor, orders: Tensor) -> None:
        for change in orders.unbind(1):
            factor = factors.gather(1, change[:, None])[:, :, None, None]
            other = _blended_with(images, change)
            more = None if other is None else other * (1 - factor)  # before the images change, as `other` may be these
            images *= factor
            if more is not None:
                images += more
            if self.clamp:
                images.clamp_(0, 255)

    def _changes(self) -> list[list[tuple[int, float, float]]]:
        """For each image its changes in their order: which, its factor, and 1 - factor as a float32 has it."""
        if self._lists is None:
            ordered = self.factors.gather(1, self.orders)
            all_of_them = zip(self.orders.tolist(), ordered.tolist(), (1 - ordered).tolist(), strict=True)
            self._lists = [list(zip(*one, strict=True)) for one in all_of_them]
        return self._lists

    def _change_one(self, image: Tensor, changes: list[tuple[int, float, float]]) -> None:
        """As `_change`, in the same steps, with numbers instead of tensors and in memory that is used again.

        On a large image, which fills a processor's cache, this takes half the time.
        """
        if self._spare.shape[1:] != image.shape[1:]:
            self._spare = image.new_empty(2, *image.shape[1:])
        grey, spare = self._spare
        for change, factor, rest in changes:
            if change != BRIGHTNESS:
                _grey(image[None], grey[None, None], spare)
            if change == CONTRAST:
                more = float(_mean(torch.round(grey, out=spare)[None, None]) * rest)
            elif change == SATURATION:
                grey *= rest
            image *= factor
            if change == CONTRAST:
                image += more
            elif change == SATURATION:
                image += grey
            if self.clamp:
                image.clamp_(0, 255)


def _blended_with(images: Tensor, change: Tensor) -> Tensor | None:
    """What a change (B) of each image blends it with: black, its mean grey, its grey version.

    None: all with black. Which changes there are is not asked of an accelerator, which would have to be waited for.
    """
    found = set(change.tolist()) if images.device.type == "cpu" else {BRIGHTNESS, CONTRAST, SATURATION}
    if found == {BRIGHTNESS}:
        return None
    grey = _grey(images)
    if found == {SATURATION}:
        return grey
    mean = _mean(grey.round())
    if found == {CONTRAST}:
        return mean
    change = change[:, None, None, None]
    return (change == CONTRAST) * mean + (change == SATURATION) * grey


def _mean(whole: Tensor) -> Tensor:
    """The mean (B, 1, 1, 1) of whole numbers (B, 1, H, W) in float32."""
    # Sums of whole numbers are exact in any order, and those of a row of up to so many pixels in float32 too, which is
    # four times as fast.
    rows = whole.sum(dim=3, dtype=None if whole.shape[3] <= 4096 else torch.int64)
    return rows.sum(dim=(1, 2), dtype=torch.int64)[:, None, None, None] / whole[0].numel()


def _grey(images: Tensor, out: Tensor | None = None, spare: Tensor | None = None) -> Tensor:
    """(B, 1, H, W): luma by the weights of ITU-R BT.601; to ``out``, with memory of B planes to ``spare``."""
    if images.shape[1] == 1:
        return images if out is None else out.copy_(images)
    red, green, blue = images.unbind(1)
    grey = torch.mul(red, 0.299, out=None if out is None else out[:, 0])
    more = torch.mul(green, 0.587, out=None if spare is None else spare.view_as(green))
    grey += more
    grey += torch.mul(blue, 0.114, out=more)
    return grey[:, None]


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
