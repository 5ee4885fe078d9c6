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
_ORDERS = ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0))


def jitter(images: Tensor, uniform: Tensor, strength: float, clamp: bool = True) -> Tensor:
    """Brightness, contrast and saturation, each by a factor in 1 - strength .. 1 + strength, in random order.

    All three blend the image with something: black, its mean grey, its grey version.

    Args:
        images: (B, C, H, W) float32 in 0..255, C = 3 or 1.
        uniform: (B, 4) numbers in [0, 1): three factors and the order.
        clamp: keep values in 0..255 after each change. CutMix's and the paper's code for ImageNet does not.
    """
    factors = 1 + strength * (2 * uniform[:, :3] - 1)
    orders = constant(_ORDERS, torch.int64, images.device)[(uniform[:, 3] * len(_ORDERS)).long()]
    images = images.clone()
    for change in orders.unbind(1):
        factor = factors.gather(1, change[:, None])[:, :, None, None]
        other = _blended_with(images, change)
        more = 0.0 if other is None else other * (1 - factor)  # before the images change, as `other` may be these
        images *= factor
        images += more
        if clamp:
            images.clamp_(0, 255)
    return images


def _blended_with(images: Tensor, change: Tensor) -> Tensor | None:
    """What a change (B) of each image blends it with: black (0), its mean grey (1), its grey version (2).

    None: all with black. Which changes there are is not asked of an accelerator, which would have to be waited for.
    """
    found = set(change.tolist()) if images.device.type == "cpu" else {0, 1, 2}
    if found == {0}:
        return None
    grey = _grey(images)
    if found == {2}:
        return grey
    # Sums of whole numbers are exact in any order, and those of a row of up to so many pixels in float32 too, which is
    # four times as fast.
    rows = grey.round().sum(dim=3, dtype=None if grey.shape[3] <= 4096 else torch.int64)
    mean = rows.sum(dim=(1, 2), dtype=torch.int64)[:, None, None, None] / grey[0].numel()
    if found == {1}:
        return mean
    change = change[:, None, None, None]
    return (change == 1) * mean + (change == 2) * grey


def _grey(images: Tensor) -> Tensor:
    """(B, 1, H, W): luma by the weights of ITU-R BT.601."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.unbind(1)
    grey, more = red * 0.299, green * 0.587
    grey += more
    grey += torch.mul(blue, 0.114, out=more)
    return grey[:, None]


def lighting(images: Tensor, uniform: Tensor, strength: float) -> Tensor:
    """Add to all pixels of an image a normal random amount of each principal colour (AlexNet's augmentation).

    Args:
        images: (B, 3, H, W) float32 in 0..255.
        uniform: (B, 6) numbers in [0, 1).
        strength: the standard deviation, as a part of the data set's own.
    """
    radius = (-2 * torch.log1p(-uniform[:, :3])).sqrt()
    normal = radius * torch.cos(2 * math.pi * uniform[:, 3:])
    amounts = normal * constant(_DEVIATIONS, torch.float32, images.device) * (255 * strength)
    shift = (amounts[:, None, :] * constant(_COMPONENTS, torch.float32, images.device)).sum(dim=2)  # (B, 3)
    return images + shift[:, :, None, None]
