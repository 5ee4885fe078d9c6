"""What Cutout, CutMix and Mixup share: which samples take part, with whom, in what share, and where in the image.

All of it is drawn per sample and is a pure function of (seed, epoch, sample); a partner also depends on the batch that
it is chosen from.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from pskd.errors import PskdError
from pskd.random import uniform


def half(index: Tensor, *, seed: int, epoch: int) -> Tensor:
    """True (B) with probability 0.5, each sample by itself: which are mixed where the others are distilled.

    The rule of PS-KD and CS-KD with a mix: ``apply=taken`` for the mix, ``distilled=~taken`` for the method.
    """
    return uniform(index, seed=seed, epoch=epoch, stream="half").squeeze(1) < 0.5


def whole_batch(index: Tensor, *, seed: int, epoch: int, probability: float, stream: str = "whole batch") -> Tensor:
    """All true or all false (B), true with this probability: whether this batch is mixed.

    CutMix's own rule: 0.5 on CIFAR, 1 on ImageNet.
    """
    if not 0 <= probability <= 1:
        raise PskdError(f"probability must lie in [0, 1], got {probability}")
    number = uniform(index[:1], seed=seed, epoch=epoch, stream=stream).squeeze(1)
    return (number < probability).expand(len(index))


def symmetric_beta(number: Tensor, parameter: float) -> Tensor:
    """Beta(parameter, parameter) numbers from uniform ones: the inverse of the distribution function, from a table."""
    if parameter == 1:
        return number
    value, probability = _beta_table(parameter, number.device)
    lower = torch.minimum(number, 1 - number)
    right = torch.searchsorted(probability, lower, right=True).clamp_max(len(value) - 1)
    left = right - 1
    part = (lower - probability[left]) / (probability[right] - probability[left])
    small = torch.lerp(value[left], value[right], part) ** max(1, 1 / parameter)
    return torch.where(number < 0.5, small, 1 - small)


@functools.lru_cache(maxsize=8)
def _beta_table(parameter: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Values v and their probabilities, up to the median; a value stands for ``x = v ** max(1, 1 / parameter)``.

    For parameters below 1 the density has a pole at x = 0, but is smooth in v.
    """
    exponent = min(1.0, parameter)
    value = torch.linspace(0, 0.5**exponent, 2**12 + 1, dtype=torch.float64)
    x = value ** (1 / exponent)
    density = x ** (parameter - exponent) * (1 - x) ** (parameter - 1)
    mass = torch.cat((torch.zeros(1), torch.cumulative_trapezoid(density, value)))
    return value.float().to(device), (0.5 * mass / mass[-1]).float().to(device)


def band(centre: Tensor, length: int | Tensor, size: int) -> Tensor:
    """True (B, size) for ``length`` places around ``centre``, clipped at the edges.

    Args:
        centre: (B) numbers in [0, 1), as a part of the size.
        length: a number or (B) int64.
    """
    start = ((centre * size).long() - length // 2)[:, None]
    end = start + (length[:, None] if isinstance(length, Tensor) else length)
    place = torch.arange(size, device=centre.device)
    return (place >= start) & (place < end)


def box(images: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """A view of the batch, and 1 in it where both ``rows`` (B, H) and ``columns`` (B, W) are true, 0 elsewhere.

    Numbers instead of a mask, and in channels-last images columns and channels joined: masks, and what is broadcast
    over the innermost dimension, take five times as long on a CPU.
    """
    rows, columns = rows.to(images.dtype), columns.to(images.dtype)
    if images.is_contiguous(memory_format=torch.channels_last) and not images.is_contiguous():
        columns = columns.repeat_interleave(images.shape[1], 1)
        return images.permute(0, 2, 3, 1).flatten(2), rows[:, :, None] * columns[:, None, :]
    return images, rows[:, None, :, None] * columns[:, None, None, :]


def check_batch(images: Tensor, index: Tensor, apply: Tensor | None, labels: Tensor | None = None) -> None:
    if images.ndim != 4 or not images.is_floating_point():
        raise PskdError(
            f"images must be a normalised floating-point batch (B, C, H, W), got {images.dtype} {tuple(images.shape)}"
        )
    for name, given in (("index", index), ("apply", apply), ("labels", labels)):
        if given is not None and given.shape != images.shape[:1]:
            raise PskdError(f"{name} must have one entry per image ({len(images)},), got shape {tuple(given.shape)}")


def check_parameter(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise PskdError(f"{name} of the Beta distribution must be a positive number, got {value}")
