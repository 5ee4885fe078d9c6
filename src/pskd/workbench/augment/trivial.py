"""TrivialAugment: one random change of every image, of random strength."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision.transforms.v2 import functional as tv

from pskd.random import uniform
from pskd.tensors import constant, to_device

BINS = 31  # strengths
Change = Callable[[Tensor, float], Tensor]  # of images (n, C, H, W) uint8 by a strength in -1..1, or 0..1
Row = tuple[float, float, float]


def _shear(images: Tensor, x: float, y: float) -> Tensor:
    """The corner at the top left stays in its place."""
    height, width = images.shape[2:]
    return _affine(images, (1, x, x * height / 2), (y, 1, y * width / 2))


def _rotate(images: Tensor, degrees: float) -> Tensor:
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return _affine(images, (cos, -sin, 0), (sin, cos, 0))


def _affine(images: Tensor, x: Row, y: Row) -> Tensor:
    """The nearest pixel of each place, black outside: a row gives a coordinate from (x, y, 1), counted from the centre.

    torchvision computes the same pixels, but an accelerator would have to wait for its constants.
    """
    height, width = images.shape[2:]
    rows = torch.tensor((x, y)) / torch.tensor((width / 2, height / 2))[:, None]
    places = torch.ones(1, height, width, 3, device=images.device)
    places[..., 0] = torch.linspace((1 - width) / 2, (width - 1) / 2, width, device=images.device)
    places[..., 1] = torch.linspace((1 - height) / 2, (height - 1) / 2, height, device=images.device)[:, None]
    grid = places.view(1, -1, 3).bmm(to_device(rows.T[None], images.device)).view(1, height, width, 2)
    moved = F.grid_sample(images.float(), grid.expand(len(images), -1, -1, -1), "nearest", align_corners=False)
    return moved.to(images.dtype)


def _sharpen(images: Tensor, factor: float) -> Tensor:
    """As torchvision's ``adjust_sharpness``, without its wait."""
    channels, height, width = images.shape[1:]
    if min(height, width) < 3:
        return images
    near, centre = 1 / 13, 5 / 13
    kernel = constant(((near, near, near), (near, centre, near), (near, near, near)), torch.float32, images.device)
    output = images.float()
    inside = output[..., 1:-1, 1:-1]
    blurred = F.conv2d(output, kernel.expand(channels, 1, 3, 3), groups=channels).round_()
    inside.add_(blurred.sub_(inside), alpha=1 - factor)
    return output.clamp_(0, 255).to(images.dtype)


# The wide space of the paper. Strengths of the first group have a sign.
SIGNED: tuple[Change, ...] = (
    lambda images, s: _shear(images, 0.99 * s, 0),
    lambda images, s: _shear(images, 0, 0.99 * s),
    lambda images, s: _affine(images, (1, 0, -int(32 * s)), (0, 1, 0)),
    lambda images, s: _affine(images, (1, 0, 0), (0, 1, -int(32 * s))),
    lambda images, s: _rotate(images, 135 * s),
    lambda images, s: tv.adjust_brightness(images, 1 + 0.99 * s),
    lambda images, s: tv.adjust_saturation(images, 1 + 0.99 * s),
    lambda images, s: tv.adjust_contrast(images, 1 + 0.99 * s),
    lambda images, s: _sharpen(images, 1 + 0.99 * s),
)
UNSIGNED: tuple[Change, ...] = (
    lambda images, _: images,
    lambda images, s: tv.posterize(images, 8 - round(6 * s)),
    lambda images, s: tv.solarize(images, 255 * (1 - s)),
    lambda images, _: tv.autocontrast(images),
    lambda images, _: tv.equalize(images),
)


def trivial_augment(images: Tensor, index: Tensor, *, seed: int, epoch: int) -> Tensor:
    """Change each image (B, C, H, W) uint8 by one operation, a pure function of (seed, epoch, sample).

    Images that drew the same operation and strength are changed together. With ``index`` on the host an accelerator is
    not waited for.

    Reference: Müller, Hutter: TrivialAugment: Tuning-free Yet State-of-the-Art Data Augmentation, ICCV 2021.
    """
    groups: dict[tuple[Change, float], list[int]] = defaultdict(list)
    for position, (kind, place, sign) in enumerate(draw(index, seed, epoch).tolist()):
        strength = place / (BINS - 1)
        if kind < len(SIGNED):
            groups[SIGNED[kind], sign * strength].append(position)
        else:
            groups[UNSIGNED[kind - len(SIGNED)], strength].append(position)
    changed = images.clone()
    for (change, strength), positions in groups.items():
        chosen = to_device(torch.tensor(positions), images.device)
        changed[chosen] = change(images[chosen], strength)
    return changed


def draw(index: Tensor, seed: int, epoch: int) -> Tensor:
    """(B, 3) int64: the operation, the place 0..BINS - 1 of its strength, and its sign, for the samples ``index``."""
    numbers = uniform(index, seed=seed, epoch=epoch, stream="trivial augment", draws=3)
    kind, place = (numbers[:, 0] * (len(SIGNED) + len(UNSIGNED))).long(), (numbers[:, 1] * BINS).long()
    return torch.stack((kind, place, 1 - 2 * (numbers[:, 2] < 0.5).long()), 1)
