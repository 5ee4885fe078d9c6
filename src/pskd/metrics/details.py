"""Where a classifier is right and wrong: how much it could answer at an error rate, class by class, which for which."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pskd.metrics.functional import RiskCoverage


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


def coverage_at_risk(curve: RiskCoverage, risk: float) -> float:
    """The largest share of the samples, most confident first, whose error rate is ``risk`` at most."""
    kept = curve.coverage[curve.risk <= risk + 1e-12]  # 1 error of 20 is 5%, however it is rounded
    return float(kept[-1]) if len(kept) else 0.0


def confusions(guesses: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """(K, K) int64, sparse: how many samples of each class (row) were taken for each class (column).

    Whole, the matrix of 100,000 classes would have 80 GB; here it has no more entries than there are samples.
    """
    pairs, times = torch.stack((labels, guesses)), torch.ones_like(labels)
    return torch.sparse_coo_tensor(pairs, times, (num_classes, num_classes), check_invariants=True).coalesce()


def confusion_matrix(guesses: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """The same, whole: for few classes."""
    return confusions(guesses, labels, num_classes).to_dense()


def class_scores(confusion: Tensor) -> ClassScores:
    """From a confusion matrix (K, K), sparse or whole."""
    cells = _sparse(confusion)
    (label, guess), times, none = cells.indices(), cells.values(), confusion.new_zeros(len(confusion)).to_dense()
    samples, guessed = none.index_add(0, label, times), none.index_add(0, guess, times)
    right = none.index_add(0, label, times * (label == guess)).double()
    return ClassScores(samples, right / samples, right / guessed, 2 * right / (samples + guessed))


def most_confused(confusion: Tensor, count: int = 5) -> list[Confusion]:
    """The most frequent mistakes, most frequent first; of equally frequent ones those of the lower classes first."""
    cells, samples = _sparse(confusion), class_scores(confusion).samples
    (label, guess), times = cells.indices(), cells.values()
    times = times * (label != guess)
    order = times.sort(descending=True, stable=True).indices[:count]
    return [
        Confusion(
            int(label[place]), int(guess[place]), int(times[place]), int(times[place]) / int(samples[label[place]])
        )
        for place in order[times[order] > 0].tolist()
    ]


def _sparse(confusion: Tensor) -> Tensor:
    return confusion if confusion.is_sparse else confusion.to_sparse()
