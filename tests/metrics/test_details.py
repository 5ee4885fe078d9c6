"""Coverage at an error rate, metrics by class and confusions, against slow transcriptions."""

from __future__ import annotations

import math

import pytest
import torch

from pskd.metrics.details import class_scores, confusion_matrix, confusions, coverage_at_risk, most_confused
from pskd.metrics.functional import risk_coverage_curve_from


def test_coverage_is_the_largest_share_that_keeps_the_error_rate() -> None:
    draw = torch.Generator().manual_seed(0)
    for _ in range(20):
        confidence = torch.rand(60, generator=draw, dtype=torch.float64)
        correct = torch.rand(60, generator=draw) < confidence + 0.2
        order = confidence.argsort(descending=True)
        curve = risk_coverage_curve_from(confidence, correct)
        for risk in (0.0, 0.05, 0.1, 0.3):
            kept = [n for n in range(1, 61) if int((~correct[order[:n]]).sum()) <= risk * n + 1e-9]
            assert coverage_at_risk(curve, risk) == pytest.approx(max(kept, default=0) / 60)


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


def test_confusions_of_very_many_classes_take_no_more_room_than_samples() -> None:
    """Whole, this matrix would have 80 GB. Where it exists whole, both say the same."""
    draw = torch.Generator().manual_seed(0)
    labels = torch.randint(100_000, (500,), generator=draw)
    guesses = torch.where(torch.rand(500, generator=draw) < 0.5, labels, labels.roll(1))
    guesses[:3], labels[:3] = 99_999, 7
    sparse = confusions(guesses, labels, 100_000)
    assert len(sparse.values()) <= 500
    assert most_confused(sparse, 1) == [(7, 99_999, 3, 1.0)]
    scores = class_scores(sparse)
    assert int(scores.samples.sum()) == 500
    assert float(scores.recall.nansum()) > 0

    few, wrong = torch.randint(9, (500,), generator=draw), torch.randint(9, (500,), generator=draw)
    whole = confusion_matrix(wrong, few, 9)
    assert most_confused(whole, 7) == most_confused(confusions(wrong, few, 9), 7)
    assert whole.sum(1).tolist() == class_scores(whole).samples.tolist()
    for one, other in zip(class_scores(whole), class_scores(confusions(wrong, few, 9)), strict=True):
        torch.testing.assert_close(one, other, equal_nan=True, rtol=0, atol=0)
