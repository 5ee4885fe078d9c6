"""The growth of alpha: values by hand, and what all schedules have in common."""

from __future__ import annotations

import math

import pytest

from pskd import PSKD, PredictionBank, schedules

EPOCHS = [1, 2, 3, 7, 10, 25, 90, 300]


@pytest.mark.parametrize("name", schedules.SCHEDULES)
@pytest.mark.parametrize("epochs", EPOCHS)
def test_never_falls_and_reaches_one_exactly(name: str, epochs: int) -> None:
    shares = [schedules.SCHEDULES[name](t / epochs) for t in range(1, epochs + 1)]
    assert shares == sorted(shares)
    assert shares[0] >= 0
    assert shares[-1] == 1


def test_values_by_hand() -> None:
    assert [schedules.linear(t / 4) for t in (1, 2, 3, 4)] == [0.25, 0.5, 0.75, 1]
    assert [schedules.step(t / 8) for t in range(1, 9)] == [0.25, 0.25, 0.5, 0.5, 0.75, 0.75, 1, 1]
    assert [schedules.step(t / 6, steps=3) for t in range(1, 7)] == pytest.approx([1 / 3, 1 / 3, 2 / 3, 2 / 3, 1, 1])
    assert schedules.cosine(1 / 2) == pytest.approx(0.5)
    assert schedules.cosine(1 / 3) == pytest.approx(0.25)
    assert schedules.exponential(0.5) == pytest.approx((math.exp(2.5) - 1) / (math.exp(5) - 1))
    assert schedules.exponential(0.5, rate=1) > schedules.exponential(0.5, rate=5)
    assert schedules.constant(1 / 300) == 1


@pytest.mark.parametrize("epochs", EPOCHS)
@pytest.mark.parametrize("steps", [4, 25])
def test_steps_are_of_equal_length(steps: int, epochs: int) -> None:
    """Epoch t belongs to the step ceil(t * steps / T), also where rounding makes 7 / 25 * 25 a little more than 7."""
    shares = [schedules.step(t / epochs, steps) for t in range(1, epochs + 1)]
    assert shares == [-(-t * steps // epochs) / steps for t in range(1, epochs + 1)]


@pytest.mark.parametrize("epochs", EPOCHS)
@pytest.mark.parametrize("alpha", [0.8, 0.3, 0.7, 1.0])
def test_alpha_t_of_the_paper(alpha: float, epochs: int) -> None:
    """Eq. 5: alpha_T / T in the first epoch, and exactly alpha_T in the last."""
    method = PSKD(epochs, alpha, memory=PredictionBank(1, 2))
    alphas = []
    for epoch in range(epochs):
        method.start_epoch(epoch)
        alphas.append(method.alpha_t)
    assert alphas == pytest.approx([alpha * t / epochs for t in range(1, epochs + 1)], rel=1e-15)
    assert alphas[-1] == alpha


def test_a_function_is_a_schedule_too() -> None:
    method = PSKD(4, 0.8, schedule=lambda progress: progress**2, memory=PredictionBank(1, 2))
    method.start_epoch(0)
    assert method.alpha_t == pytest.approx(0.8 / 16)
