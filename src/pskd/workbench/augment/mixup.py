"""Mixup: every image is blended with another one, and so is its label."""

from __future__ import annotations

import functools

import torch
from torch import Tensor


def mixup(images: Tensor, partner: Tensor, uniform: Tensor, alpha: float, apply: Tensor) -> Tensor:
    """``lam * image + (1 - lam) * its partner``, ``lam ~ Beta(alpha, alpha)`` of each image; **changes ``images``**.

    Args:
        images: (B, C, H, W), normalised, in any memory format.
        partner: (B) int64, the place in the batch of each image's partner.
        uniform: (B) numbers in [0, 1): lam.
        alpha: of the Beta distribution. Its authors: 1 on CIFAR, 0.2 on ImageNet.
        apply: (B) bool, which images are mixed. Any image of the batch may be a partner.

    Returns:
        lam (B); 1 for images that are not mixed.

    Reference: Zhang, Cisse, Dauphin, Lopez-Paz: mixup: Beyond Empirical Risk Minimization, ICLR 2018.
    """
    lam = torch.where(apply, symmetric_beta(uniform, alpha), 1.0)
    images.lerp_(images[partner], (1 - lam).to(images.dtype)[:, None, None, None])
    return lam


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
