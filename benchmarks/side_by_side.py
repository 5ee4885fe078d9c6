"""Time two things alternately in one run, so that a noisy machine disturbs both alike."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple


class Estimate(NamedTuple):
    """A median and its 95% bootstrap interval."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.4g} (95% interval {self.low:.4g} to {self.high:.4g})"


def alternate(
    *sides: Callable[[], object], rounds: int = 30, warmup: int = 3, clock: Callable[[], float] = time.perf_counter
) -> list[list[float]]:
    """Seconds of every side in every round; a random one goes first each time. Returns one list per side.

    With ``clock=time.process_time``, for work that waits for nothing, a busy machine hardly shows.
    """
    for _ in range(warmup):
        for side in sides:
            side()
    seconds: list[list[float]] = [[] for _ in sides]
    order = list(range(len(sides)))
    shuffle = random.Random(0).shuffle
    for _ in range(rounds):
        shuffle(order)
        for which in order:
            start = clock()
            sides[which]()
            seconds[which].append(clock() - start)
    return seconds


def median(values: list[float], resamples: int = 2000) -> Estimate:
    """The median of one value per round (a ratio or a difference of that round's two sides)."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(resamples))
    return Estimate(statistics.median(values), medians[int(0.025 * resamples)], medians[int(0.975 * resamples)])
