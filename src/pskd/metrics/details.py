"""Where a classifier is right and wrong: how much it could answer at an error rate, class by class, which for which."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pskd.metrics.functional import risk_coverage_curve_from


class ClassScores(NamedTuple):
    """Of each class (K,): its samples, recall, precision and F1 in 0..1; NaN where there is nothing to divide by."""

    samples: Tensor
    recall: Tensor
    precision: Tensor
    f1: Tensor


class Confusion(NamedTuple):
    """So many samples of one class were taken for another, which is a share of the first one's samples."""

    label: int
    taken_for: int
    times: int
    share: float


def coverage_at_risk_from(confidence: Tensor, correct: Tensor, risk: float) -> float:
    """The largest share of the samples, most confident first, whose error rate is ``risk`` at most."""
    curve = risk_coverage_curve_from(confidence, correct)
    kept = curve.coverage[curve.risk <= risk + 1e-12]  # 1 error of 20 is 5%, however it is rounded
    return float(kept[-1]) if len(kept) else 0.0


def confusion_matrix(guesses: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """(K, K) int64: how many samples of each class (row) were taken for each class (column)."""
    return torch.bincount(labels * num_classes + guesses, minlength=num_classes**2).view(num_classes, num_classes)


def class_scores(confusion: Tensor) -> ClassScores:
    """From a confusion matrix (K, K)."""
    right, samples, guessed = confusion.diagonal().double(), confusion.sum(1), confusion.sum(0)
    return ClassScores(samples, right / samples, right / guessed, 2 * right / (samples + guessed))


def most_confused(confusion: Tensor, count: int = 5) -> list[Confusion]:
    """The most frequent mistakes, most frequent first; of equally frequent ones those of the lower classes first."""
    off = confusion.clone().fill_diagonal_(0).flatten()
    order = off.sort(descending=True, stable=True).indices[:count]
    found = []
    for place in order.tolist():
        label, taken_for = divmod(place, len(confusion))
        if times := int(off[place]):
            found.append(Confusion(label, taken_for, times, times / int(confusion[label].sum())))
    return found
