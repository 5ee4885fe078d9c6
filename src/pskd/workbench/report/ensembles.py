"""Ensembles of finished runs: the mean of their softmax outputs (the paper's Table 3)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from pskd.errors import PskdError
from pskd.metrics import functional
from pskd.workbench.runs.predictions import Predictions, read


class DifferentData(PskdError):
    """Runs that were tested on different data, or know different classes."""


def average_predictions(runs: Sequence[Path]) -> Predictions:
    """The mean of the runs' probabilities, in float64."""
    if len(runs) < 2:
        raise PskdError("an ensemble needs at least two runs")
    first = read(runs[0])
    total = first.probs.double()
    for run in runs[1:]:
        member = read(run)
        if member.classes != first.classes:
            raise DifferentData(f"{run} has other classes than {runs[0]}, or has them in another order")
        if member.fingerprint != first.fingerprint or not torch.equal(member.labels, first.labels):
            raise DifferentData(f"{run} was tested on another test set than {runs[0]}")
        total += member.probs
    return first._replace(probs=total / len(runs))


def score_predictions(predictions: Predictions, n_bins: int = 10) -> dict[str, float]:
    """The metrics of stored predictions, in the paper's units."""
    smallest = 2.0**-149  # the smallest float32: a probability stored as 0 is not exactly 0
    log_probs = predictions.probs.double().clamp_min(smallest).log()
    return functional.summarize(functional.score_samples(log_probs, predictions.labels, from_logits=True), n_bins)


def ensemble(runs: Sequence[Path], n_bins: int = 10) -> dict[str, dict[str, Any]]:
    """The metrics of each run by its name, and of "ensemble", the mean of their probabilities."""
    mean = score_predictions(average_predictions(runs), n_bins)
    return {**{str(run): score_predictions(read(run), n_bins) for run in runs}, "ensemble": mean}
