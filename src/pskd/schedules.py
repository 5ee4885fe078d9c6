"""How fast alpha grows: each schedule maps progress t/T in (0, 1] to a share of alpha_T in [0, 1], 1 at the end.

The paper's Eq. 5 is ``alpha_t = alpha_T * linear(t / T)``, with epochs t counted from 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

Schedule = Callable[[float], float]
ScheduleName = Literal["linear", "step", "exponential", "cosine", "constant"]


def linear(progress: float) -> float:
    """The paper's choice: in proportion to the epochs done."""
    return progress


def step(progress: float, steps: int = 4) -> float:
    """A staircase of ``steps`` equal treads; the first is already 1/steps high."""
    return math.ceil(progress * steps - 1e-9) / steps


def exponential(progress: float, rate: float = 5.0) -> float:
    """Slow at first, fast at the end; a larger ``rate`` bends the curve more."""
    return math.expm1(rate * progress) / math.expm1(rate)


def cosine(progress: float) -> float:
    """Slow at both ends."""
    return (1 - math.cos(math.pi * progress)) / 2


def constant(progress: float) -> float:
    """alpha_T from the first epoch on: the paper's ablation."""
    return 1.0


SCHEDULES: dict[str, Schedule] = {f.__name__: f for f in (linear, step, exponential, cosine, constant)}
