"""What the record of every training sample shows: hard examples, and how PS-KD rescales gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from pskd.config import PSKDConfig
from pskd.engine.history import Recorded
from pskd.report.runs import Row, Run

HARD, SHARE = 100, 10  # so many samples, and at most one in so many


class Probabilities(NamedTuple):
    """Means over the hard samples and the seeds, by epoch."""

    target: np.ndarray
    maximum: np.ndarray


class HardExamples(NamedTuple):
    lines: Mapping[str, Probabilities]
    chosen_by: str
    samples: int
    most_often: int  # how often the plain run was right on the easiest of them
    epochs: int


class Rescaling(NamedTuple):
    """By epoch, from the second one on: quartiles over the samples that meet the condition, and their share."""

    epochs: np.ndarray
    lower: np.ndarray
    median: np.ndarray
    upper: np.ndarray
    share: np.ndarray


def over_training(rows: Sequence[Row]) -> HardExamples | None:
    """Probabilities of the samples that plain training gets right least often, the same ones for every method.

    They are chosen for each seed. None without a plain run that has recorded its samples.
    """
    plain = next((row for row in rows if row.runs[0].config.method.name == "hard" and _recorded(row)), None)
    if plain is None:
        return None
    chosen: dict[tuple[int, str], np.ndarray] = {}
    often, epochs = 0, 0
    for run, recorded in _recorded(plain):
        right = recorded.correct.sum(0)
        hardest = np.argsort(right, kind="stable")[: max(1, min(HARD, len(right) // SHARE))]
        chosen[_data(run)] = hardest
        often, epochs = max(often, int(right[hardest].max())), recorded.correct.shape[0]
    lines = {}
    for row in rows:
        parts = [(recorded, chosen[_data(run)]) for run, recorded in _recorded(row) if _data(run) in chosen]
        if parts and len({recorded.target.shape[0] for recorded, _ in parts}) == 1:
            lines[row.short] = Probabilities(
                *(np.mean([_mean(getattr(r, part)[:, of]) for r, of in parts], 0) for part in Probabilities._fields)
            )
    return HardExamples(lines, plain.short, len(hardest), often, epochs)


def rescaling(row: Row) -> Rescaling | None:
    """``1 - alpha_t * gamma_(t-1) / gamma_t`` of a PS-KD row's first seed; None for other methods."""
    if not isinstance(row.runs[0].config.method, PSKDConfig):
        return None
    recorded = row.runs[0].history
    alphas = {record["epoch"]: record["alpha_t"] for record in row.runs[0].epochs if "alpha_t" in record}
    if recorded is None or len(alphas) < len(recorded.wrong) or len(recorded.wrong) < 2:
        return None
    quartiles, shares = [], []
    for epoch in range(1, len(recorded.wrong)):
        before, now, held = recorded.wrong[epoch - 1], recorded.wrong[epoch], recorded.rescaled[epoch]
        known = ~np.isnan(before) & ~np.isnan(now)
        shares.append(held[known].mean() if known.any() else np.nan)
        use = known & held & (now > 0)
        factor = 1 - alphas[epoch + 1] * before[use] / now[use]
        quartiles.append(np.percentile(factor, (25, 50, 75)) if use.any() else [np.nan] * 3)
    lower, median, upper = np.array(quartiles).T
    return Rescaling(np.arange(2, len(recorded.wrong) + 1), lower, median, upper, np.array(shares))


def _recorded(row: Row) -> list[tuple[Run, Recorded]]:
    return [(run, run.history) for run in row.runs if run.history is not None]


def _data(run: Run) -> tuple[int, str]:
    """What has to be the same for a sample's number to mean the same sample."""
    return run.seed, run.result["data_fingerprint"]


def _mean(values: np.ndarray) -> np.ndarray:
    """Over samples, by epoch; one in which none was plain has none."""
    seen = ~np.isnan(values)
    count = seen.sum(1)
    return np.where(count > 0, np.nansum(values, 1) / np.maximum(1, count), np.nan)
