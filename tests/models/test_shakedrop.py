"""ShakeDrop by statistics over many draws; the bounds are five standard errors."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from pskd.workbench.models.families.shakedrop import ShakeDrop

OPEN = 0.7
DRAWS, BATCH = 3000, 8


@pytest.fixture(scope="module")
def factors() -> tuple[Tensor, Tensor]:
    """What the images and their gradients were multiplied with: two of (DRAWS, BATCH)."""
    torch.manual_seed(0)
    shake = ShakeDrop(OPEN).train()
    forth, back = torch.empty(2, DRAWS, BATCH)
    for draw in range(DRAWS):
        x = torch.ones(BATCH, 1, 1, 1, requires_grad=True)
        out = shake(x)
        out.sum().backward()
        assert x.grad is not None
        forth[draw], back[draw] = out.detach().flatten(), x.grad.flatten()
    return forth, back


def is_near(values: Tensor, mean: float, variance: float) -> bool:
    return abs(values.mean().item() - mean) < 5 * math.sqrt(variance / values.numel())


def test_one_gate_serves_the_batch_in_both_directions(factors: tuple[Tensor, Tensor]) -> None:
    is_open = (factors[0] == 1) & (factors[1] == 1)
    assert torch.equal(is_open.any(1), is_open.all(1))
    assert is_near(is_open[:, 0].float(), OPEN, OPEN * (1 - OPEN))


def test_a_closed_gate_draws_both_factors_per_image_and_independently(factors: tuple[Tensor, Tensor]) -> None:
    closed = factors[0][:, 0] != 1
    forth, back = factors[0][closed], factors[1][closed]
    assert forth.min() < -0.99
    assert forth.max() <= 1
    assert is_near(forth, 0, 1 / 3)
    assert is_near(forth.square(), 1 / 3, 4 / 45)
    assert back.min() >= 0
    assert back.max() > 0.99
    assert is_near(back, 1 / 2, 1 / 12)
    assert is_near((back - 0.5).square(), 1 / 12, 1 / 180)
    # Uncorrelated: the forward with the backward factor of an image, and each with those of its neighbour in the batch.
    assert is_near(forth * (back - 0.5), 0, 1 / 36)
    assert is_near(forth * forth.roll(1, 1), 0, 1 / 9)
    assert is_near((back - 0.5) * (back.roll(1, 1) - 0.5), 0, 1 / 144)


def test_evaluation_is_the_expectation_of_training(factors: tuple[Tensor, Tensor]) -> None:
    x = torch.randn(4, 3, 2, 2)
    assert torch.equal(ShakeDrop(OPEN).eval()(x), x * OPEN)
    # The images of a draw share its gate, so the draws are the independent samples: E f^2 = p + (1 - p) / 3.
    forth_variance = OPEN + (1 - OPEN) / 3 - OPEN**2
    expected_back = OPEN + (1 - OPEN) / 2
    back_variance = OPEN + (1 - OPEN) / 3 - expected_back**2
    assert is_near(factors[0][:, 0], OPEN, forth_variance)
    assert is_near(factors[1][:, 0], expected_back, back_variance)


def test_an_image_is_scaled_as_a_whole_and_keeps_type_and_memory_format() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 3, 5, 5).to(torch.bfloat16, memory_format=torch.channels_last)
    out = ShakeDrop(0.0).train()(x)
    assert out.dtype == torch.bfloat16
    assert out.is_contiguous(memory_format=torch.channels_last)
    factor = (out.float() / x.float()).flatten(1)
    assert (factor.std(1) < 0.01).all()
    assert factor.mean(1).std() > 0.1
