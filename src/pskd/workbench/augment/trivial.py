"""TrivialAugment: one random change of every image, of random strength, by torchvision's operations."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as F

from pskd.random import uniform

BINS = 31  # strengths
Change = Callable[[Tensor, float], Tensor]  # of images (n, C, H, W) uint8 by a strength in -1..1, or 0..1


def _affine(images: Tensor, *, move: tuple[int, int] = (0, 0), shear: tuple[float, float] = (0, 0)) -> Tensor:
    corner = [0.0, 0.0] if any(shear) else None  # what stays in its place; else the centre
    near = InterpolationMode.NEAREST
    moved: Tensor = F.affine(images, 0.0, list(move), 1.0, list(shear), near, fill=0, center=corner)
    return moved


def _slanted(strength: float) -> float:
    return math.degrees(math.atan(0.99 * strength))


def _pixels(strength: float) -> int:
    return int(32 * strength)


# The wide space of the paper. Strengths of the first group have a sign.
SIGNED: tuple[Change, ...] = (
    lambda images, s: _affine(images, shear=(_slanted(s), 0)),
    lambda images, s: _affine(images, shear=(0, _slanted(s))),
    lambda images, s: _affine(images, move=(_pixels(s), 0)),
    lambda images, s: _affine(images, move=(0, _pixels(s))),
    lambda images, s: F.rotate(images, 135 * s, InterpolationMode.NEAREST, fill=0),
    lambda images, s: F.adjust_brightness(images, 1 + 0.99 * s),
    lambda images, s: F.adjust_saturation(images, 1 + 0.99 * s),
    lambda images, s: F.adjust_contrast(images, 1 + 0.99 * s),
    lambda images, s: F.adjust_sharpness(images, 1 + 0.99 * s),
)
UNSIGNED: tuple[Change, ...] = (
    lambda images, _: images,
    lambda images, s: F.posterize(images, 8 - round(6 * s)),
    lambda images, s: F.solarize(images, 255 * (1 - s)),
    lambda images, _: F.autocontrast(images),
    lambda images, _: F.equalize(images),
)


def trivial_augment(images: Tensor, index: Tensor, *, seed: int, epoch: int) -> Tensor:
    """Change each image (B, C, H, W) uint8 by one operation, a pure function of (seed, epoch, sample).

    Images that drew the same operation and strength are changed together.

    Reference: Müller, Hutter: TrivialAugment: Tuning-free Yet State-of-the-Art Data Augmentation, ICCV 2021.
    """
    images = images.clone()
    drawn = draw(index, seed, epoch).to(images.device)
    for kind, place, sign in torch.unique(drawn, dim=0).tolist():
        chosen = (drawn == torch.tensor((kind, place, sign), device=images.device)).all(1).nonzero().squeeze(1)
        strength = place / (BINS - 1)
        if kind < len(SIGNED):
            images[chosen] = SIGNED[kind](images[chosen], sign * strength)
        else:
            images[chosen] = UNSIGNED[kind - len(SIGNED)](images[chosen], strength)
    return images


def draw(index: Tensor, seed: int, epoch: int) -> Tensor:
    """(B, 3) int64: the operation, the place 0..BINS - 1 of its strength, and its sign, for the samples ``index``."""
    numbers = uniform(index, seed=seed, epoch=epoch, stream="trivial augment", draws=3)
    kind, place = (numbers[:, 0] * (len(SIGNED) + len(UNSIGNED))).long(), (numbers[:, 1] * BINS).long()
    return torch.stack((kind, place, 1 - 2 * (numbers[:, 2] < 0.5).long()), 1)
