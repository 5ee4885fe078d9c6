"""Whether two methods differ, by the seeds that both were trained with."""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

from pskd.metrics.catalogue import Metric

Key = TypeVar("Key", bound=Hashable)
ENOUGH_SEEDS, LEVEL = 3, 0.05  # what a difference needs to be called significant
BETTER, WORSE, DIFFERENT = "better", "worse", "different"


def verdict(metric: Metric, difference: float) -> str:
    """What a significant difference from the baseline is called."""
    if metric.higher_is_better is None:
        return DIFFERENT
    return BETTER if metric.cost(difference) < 0 else WORSE


def pass_holm(chances: Mapping[Key, float]) -> set[Key]:
    """Which of several p-values are significant together, by Holm's correction."""
    passed = set[Key]()
    for rank, key in enumerate(sorted(chances, key=lambda key: chances[key])):
        if chances[key] * (len(chances) - rank) >= LEVEL:
            break
        passed.add(key)
    return passed


def paired_differences(own: Mapping[int, float], other: Mapping[int, float]) -> list[float]:
    """The differences of values by seed, over the seeds that both have."""
    return [own[seed] - other[seed] for seed in sorted(own.keys() & other.keys())]


def paired_chance(differences: Sequence[float]) -> float:
    """The two-sided p-value of a paired t-test."""
    from scipy.stats import t

    spread = statistics.stdev(differences)
    mean = statistics.fmean(differences)
    if spread <= 1e-12 * abs(mean) or spread == 0:
        return 1.0  # equal differences are no evidence
    return float(2 * t.sf(abs(mean) / (spread / math.sqrt(len(differences))), len(differences) - 1))


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Student's 95% interval of a mean; None for fewer than two values."""
    from scipy.stats import t

    if len(values) < 2:
        return None
    mean, spread = statistics.fmean(values), statistics.stdev(values)
    margin = float(t.ppf(1 - LEVEL / 2, len(values) - 1)) * spread / math.sqrt(len(values))
    return mean - margin, mean + margin
