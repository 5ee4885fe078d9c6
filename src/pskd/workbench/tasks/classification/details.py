"""What an evaluation of a classifier says beyond the metrics of its training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from pskd.metrics import functional
from pskd.metrics.details import class_scores, confusions, coverage_at_risk, most_confused

MATRIX = 200  # classes up to which an evaluation has the whole confusion matrix


def detailed(
    scores: functional.SampleScores, guesses: Tensor, labels: Tensor, classes: Sequence[str]
) -> dict[str, Any]:
    """What an evaluation says beyond a training's: coverage at error rates, metrics by class, the confusions."""
    curve = functional.risk_coverage_curve_from(scores.confidence, scores.correct)
    found: dict[str, Any] = {
        f"coverage_at_{percent}": 100 * coverage_at_risk(curve, percent / 100) for percent in (1, 5, 10)
    }
    matrix = confusions(guesses, labels, len(classes))
    columns = class_scores(matrix)
    numbers = zip(*(column.tolist() for column in columns), strict=True)
    found["per_class"] = {
        name: {key: value for key, value in zip(columns._fields, row, strict=True) if value == value}
        for name, row in zip(classes, numbers, strict=True)
    }
    found["most_confused"] = [
        {**pair._asdict(), "label": classes[pair.label], "taken_for": classes[pair.taken_for]}
        for pair in most_confused(matrix)
    ]
    return {**found, "confusion": matrix.to_dense().tolist()} if len(classes) <= MATRIX else found
