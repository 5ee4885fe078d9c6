"""What the record of every training sample shows: hard examples, and how a past rescales gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from pskd.workbench.study.results import Row, Run, plain_row

HARD, SHARE = 100, 10  # so many samples, and at most one in so many
EPOCHS = 60  # at most, of a curve
PART = 2**20  # samples that are looked at at a time


class Probabilities(NamedTuple):
    """Means over the hard samples, by epoch."""

    target: np.ndarray
    maximum: np.ndarray


class HardExamples(NamedTuple):
    lines: Mapping[str, Probabilities]
    baseline: str  # the row that they are hard for
    samples: int
    most_often: int  # how often the baseline was right on the easiest of them
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

    Of each row the first run that saw the same data as the plain one. None without a plain run that has recorded its
    samples.
    """
    plain = plain_row(rows)
    baseline = None if plain is None else next((run for run in plain.runs if run.history is not None), None)
    if plain is None or baseline is None or baseline.history is None:
        return None
    right = baseline.history.times_correct()
    hardest = np.argsort(right, kind="stable")[: max(1, min(HARD, len(right) // SHARE))]
    lines = {}
    for row in rows:
        same = (run.history for run in row.runs if _data(run) == _data(baseline))
        if (recorded := next((found for found in same if found is not None), None)) is not None:
            found = recorded.of(samples=np.sort(hardest))
            lines[row.short] = Probabilities(_mean(found.target), _mean(found.maximum))
    return HardExamples(lines, plain.short, len(hardest), int(right[hardest].max()), baseline.history.num_epochs)


def rescaling(row: Row) -> Rescaling | None:
    """``1 - alpha_t * gamma_past / gamma_t`` of a row's first seed; None if it recorded no alpha_t, or no samples.

    The past is the one that the method used. The first format of the record does not have it: there the prediction of
    the epoch before stands for it, which is right for a memory that keeps the training's own predictions, and no other.
    """
    recorded = row.runs[0].history
    alphas = {record["epoch"]: record["alpha_t"] for record in row.runs[0].epochs if "alpha_t" in record}
    if recorded is None or recorded.num_epochs < 2 or len(alphas) < recorded.num_epochs:
        return None
    estimated = recorded.version == 0
    if estimated and getattr(row.runs[0].config.method, "memory", None) != "bank":
        return None
    epochs = np.unique(np.linspace(1, recorded.num_epochs - 1, min(EPOCHS, recorded.num_epochs - 1)).astype(int))
    quartiles, shares = [], []
    for epoch in epochs.tolist():
        factors, known, held = [], 0, 0
        for samples in _in_parts(recorded.num_samples):
            pair = recorded.of([epoch - 1, epoch], samples)
            now, before = pair.wrong[1], pair.wrong[0] if estimated else pair.past_wrong[1]
            both = ~np.isnan(before) & ~np.isnan(now)
            met = both & pair.rescaled[1]
            known, held = known + int(both.sum()), held + int(met.sum())
            use = met & (now > 0)
            # Where the condition holds, only the rounding of the record makes it negative.
            factors.append(np.maximum(0, 1 - alphas[epoch + 1] * before[use] / now[use]))
        factor = np.concatenate(factors)
        shares.append(held / known if known else np.nan)
        quartiles.append(np.percentile(factor, (25, 50, 75)) if len(factor) else [np.nan] * 3)
    lower, median, upper = np.array(quartiles).T
    return Rescaling(epochs + 1, lower, median, upper, np.array(shares))


def _in_parts(count: int) -> Iterator[slice]:
    """All samples, a few at a time, whose numbers fit into the memory."""
    return (slice(start, start + PART) for start in range(0, count, PART))


def _data(run: Run) -> tuple[int, str]:
    """What has to be the same for a sample's number to mean the same sample."""
    return run.seed, run.result["data_fingerprint"]


def _mean(values: np.ndarray) -> np.ndarray:
    """Over samples, by epoch; one in which none was plain has none."""
    seen = ~np.isnan(values)
    count = seen.sum(1)
    return np.where(count > 0, np.nansum(values, 1) / np.maximum(1, count), np.nan)
