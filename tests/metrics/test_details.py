"""Coverage at an error rate, metrics by class and confusions, against slow transcriptions."""

from __future__ import annotations

import math

import pytest
import torch

from pskd.metrics.details import class_scores, confusion_matrix, coverage_at_risk_from, most_confused


def test_coverage_is_the_largest_share_that_keeps_the_error_rate() -> None:
    draw = torch.Generator().manual_seed(0)
    for _ in range(20):
        confidence = torch.rand(60, generator=draw, dtype=torch.float64)
        correct = torch.rand(60, generator=draw) < confidence + 0.2
        order = confidence.argsort(descending=True)
        for risk in (0.0, 0.05, 0.1, 0.3):
            kept = [n for n in range(1, 61) if int((~correct[order[:n]]).sum()) <= risk * n + 1e-9]
            assert coverage_at_risk_from(confidence, correct, risk) == pytest.approx(max(kept, default=0) / 60)


def test_class_scores_are_those_of_counting() -> None:
    labels, guesses = torch.tensor([0, 0, 0, 1, 1, 3, 3]), torch.tensor([0, 1, 1, 1, 0, 1, 3])
    matrix = confusion_matrix(guesses, labels, 4)
    assert matrix.tolist() == [[1, 2, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0], [0, 1, 0, 1]]
    scores = class_scores(matrix)
    assert scores.samples.tolist() == [3, 2, 0, 2]
    for c in (0, 1, 3):
        recall = float((guesses[labels == c] == c).double().mean())
        precision = float((labels[guesses == c] == c).double().mean())
        assert float(scores.recall[c]) == pytest.approx(recall)
        assert float(scores.precision[c]) == pytest.approx(precision)
        assert float(scores.f1[c]) == pytest.approx(2 * recall * precision / (recall + precision))
    assert all(math.isnan(float(column[2])) for column in scores[1:])
    assert most_confused(matrix, 2) == [(0, 1, 2, 2 / 3), (1, 0, 1, 0.5)]
    assert most_confused(torch.eye(3, dtype=torch.long)) == []
