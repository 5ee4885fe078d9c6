"""Every metric against a slow, literal transcription of its definition, at ties, edges and extremes."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from pskd.errors import PskdError
from pskd.metrics import functional as M
from pskd.metrics.catalogue import METRICS

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def predictions(n: int = 300, classes: int = 7, seed: int = 0, sharpness: float = 2.0) -> tuple[Tensor, Tensor]:
    """Float64 probabilities of a model that is right more often than not, and the labels."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (n,), generator=generator)
    logits = torch.randn(n, classes, generator=generator, dtype=torch.float64)
    logits[torch.arange(n), labels] += 1.0
    return (sharpness * logits).softmax(1), labels


def tied(n: int = 300, classes: int = 7, levels: int = 8) -> tuple[Tensor, Tensor]:
    """Predictions on a coarse grid: confidences are shared by many samples, and classes of one sample are tied too."""
    probs, labels = predictions(n, classes)
    counts = (probs * levels).floor()
    counts[:, 0] += levels - counts.sum(1)
    return counts / levels, labels


def slow_confidence_and_correct(probs: Tensor, labels: Tensor) -> tuple[list[float], list[bool]]:
    rows = probs.tolist()
    return [max(row) for row in rows], [row.index(max(row)) == y for row, y in zip(rows, labels.tolist(), strict=True)]


def slow_bin(confidence: Fraction, edges: list[Fraction]) -> int:
    """The m with edges[m] < confidence <= edges[m + 1]; 0 is in the first bin."""
    return max(0, next(m for m, edge in enumerate(edges) if confidence <= edge) - 1)


def slow_ece(confidence: list[float], correct: list[bool], n_bins: int) -> float:
    edges = [Fraction(m, n_bins) for m in range(n_bins + 1)]
    where = [slow_bin(Fraction(c), edges) for c in confidence]
    ece = 0.0
    for m in range(n_bins):
        members = [i for i, bin_ in enumerate(where) if bin_ == m]
        if members:
            mean_confidence = sum(confidence[i] for i in members) / len(members)
            accuracy = sum(correct[i] for i in members) / len(members)
            ece += len(members) / len(confidence) * abs(accuracy - mean_confidence)
    return ece


def slow_risks(confidence: list[float], correct: list[bool]) -> list[float]:
    """Most confident first; within a group of g with e errors after a samples with E errors: (E + j e/g) / (a + j)."""
    risks: list[float] = []
    total_errors = 0
    for level in sorted(set(confidence), reverse=True):
        group = [right for c, right in zip(confidence, correct, strict=True) if c == level]
        size, errors, before = len(group), group.count(False), len(risks)
        for j in range(1, size + 1):
            risks.append((total_errors + j * errors / size) / (before + j))
        total_errors += errors
    return risks


def slow_lowest_aurc(correct: list[bool]) -> float:
    n, r = len(correct), correct.count(False)
    return sum(i / (n - r + i) for i in range(1, r + 1)) / n


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("classes", [1, 2, 7, 300])
@pytest.mark.parametrize("levels", [2, 8, 1000])
def test_of_equally_probable_classes_the_first_is_the_prediction(dtype: torch.dtype, classes: int, levels: int) -> None:
    probs, labels = tied(classes=classes, levels=levels)
    probs[:20] = 1 / classes
    probs = probs.to(dtype)
    confidence, correct = M.confidence_and_correct(probs, labels)
    assert (confidence.tolist(), correct.tolist()) == slow_confidence_and_correct(probs, labels)


@pytest.mark.parametrize("make", [predictions, tied])
@pytest.mark.parametrize("n_bins", [1, 3, 10, 15])
def test_calibration_is_its_definition(make: Callable[[], tuple[Tensor, Tensor]], n_bins: int) -> None:
    probs, labels = make()
    confidence, correct = slow_confidence_and_correct(probs, labels)
    ece = M.expected_calibration_error(probs, labels, n_bins)
    assert ece.dtype == torch.float64
    assert ece.item() == pytest.approx(slow_ece(confidence, correct, n_bins), abs=1e-14)
    bins = M.reliability_bins(probs, labels, n_bins)
    assert bins.counts.sum() == len(labels)
    gap = (bins.counts * (bins.accuracy - bins.confidence).abs()).nansum() / len(labels)
    assert gap.item() == pytest.approx(ece.item(), abs=1e-14)


@pytest.mark.parametrize("make", [predictions, tied])
def test_ranking_is_its_definition(make: Callable[[], tuple[Tensor, Tensor]]) -> None:
    probs, labels = make()
    confidence, correct = slow_confidence_and_correct(probs, labels)
    risks = slow_risks(confidence, correct)
    aurc = sum(risks) / len(risks)
    curve = M.risk_coverage_curve(probs, labels)
    torch.testing.assert_close(curve.risk, torch.tensor(risks, dtype=torch.float64), rtol=0, atol=1e-14)
    torch.testing.assert_close(curve.coverage, torch.arange(1, len(labels) + 1, dtype=torch.float64) / len(labels))
    assert M.area_under_risk_coverage(probs, labels).item() == pytest.approx(aurc, abs=1e-14)
    excess = M.excess_area_under_risk_coverage(probs, labels).item()
    assert excess == pytest.approx(aurc - slow_lowest_aurc(correct), abs=1e-14)
    assert 0 < excess < aurc


def test_ties_are_the_expectation_over_their_orders() -> None:
    confidence = [0.9, 0.6, 0.6, 0.6, 0.2]
    correct = [True, False, True, False, True]
    areas = []
    for middle in itertools.permutations(correct[1:4]):
        errors = list(itertools.accumulate(not right for right in [correct[0], *middle, correct[4]]))
        areas.append(sum(e / i for i, e in enumerate(errors, 1)) / 5)
    ours = M.area_under_risk_coverage_from(torch.tensor(confidence), torch.tensor(correct))
    assert ours.item() == pytest.approx(sum(areas) / len(areas), abs=1e-15)


@pytest.mark.parametrize("k", [1, 2, 5, 7])
@pytest.mark.parametrize("make", [predictions, tied])
def test_top_k_is_its_definition(make: Callable[[], tuple[Tensor, Tensor]], k: int) -> None:
    probs, labels = make()
    wrong = 0
    for row, label in zip(probs.tolist(), labels.tolist(), strict=True):
        best_first = sorted(range(len(row)), key=lambda c: (-row[c], c))
        wrong += label not in best_first[:k]
    assert M.top_k_error(probs, labels, k).item() == wrong / len(labels)


def test_top_k_with_fewer_classes_takes_them_all() -> None:
    probs, labels = predictions(classes=3)
    assert M.top_k_error(probs, labels, 5) == 0
    assert M.top_k_error(probs, labels, 2) > 0


def test_nan_is_never_right() -> None:
    logits = torch.full((4, 3), torch.nan)
    logits[3] = torch.tensor([0.6, torch.nan, 0.4])
    assert M.top_k_error(logits, torch.tensor([0, 1, 2, 0]), 1, from_logits=True) == 1
    assert M.top_k_error(logits, torch.tensor([0, 1, 2, 1]), 5, from_logits=True) == 1
    with pytest.raises(PskdError, match="confidence must lie in 0 to 1, got nan to nan"):
        M.expected_calibration_error(logits, torch.tensor([0, 1, 2, 0]), from_logits=True)


def test_nll_and_brier_are_their_definitions() -> None:
    probs, labels = predictions()
    rows = list(zip(probs.tolist(), labels.tolist(), strict=True))
    nll = -sum(math.log(row[y]) for row, y in rows) / len(rows)
    brier = sum(sum((p - (c == y)) ** 2 for c, p in enumerate(row)) for row, y in rows) / len(rows)
    assert M.negative_log_likelihood(probs, labels).item() == pytest.approx(nll, abs=1e-14)
    assert M.negative_log_likelihood(probs.log() + 5, labels, from_logits=True).item() == pytest.approx(nll, abs=1e-14)
    assert M.brier_score(probs, labels).item() == pytest.approx(brier, abs=1e-14)


def test_nll_stays_finite_where_the_softmax_underflows() -> None:
    logits = torch.tensor([[200.0, 0.0]])
    assert M.negative_log_likelihood(logits, torch.tensor([1]), from_logits=True).item() == 200.0
    assert M.negative_log_likelihood(logits.softmax(1), torch.tensor([1])).item() == math.inf


@pytest.mark.parametrize("make", [predictions, tied])
def test_logits_give_what_their_probabilities_give(make: Callable[[], tuple[Tensor, Tensor]]) -> None:
    probs, labels = make()
    logits = probs.clamp_min(1e-30).log() + 2
    for metric in (
        M.top_k_error,
        M.negative_log_likelihood,
        M.brier_score,
        M.expected_calibration_error,
        M.area_under_risk_coverage,
        M.excess_area_under_risk_coverage,
        M.reliability_bins,
        M.risk_coverage_curve,
        M.score_samples,
    ):
        if make is tied and metric in (M.negative_log_likelihood, M.score_samples):
            continue  # a label of probability 0
        found, wanted = metric(logits.softmax(1), labels), metric(logits, labels, from_logits=True)
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12, equal_nan=True)
        for wrong in (logits, probs.clamp_min(1e-30).log(), 2 * probs, probs - 1 / 7, probs * torch.nan):
            with pytest.raises(PskdError, match=r"probs: \d+ of 300 rows are no probabilities.*from_logits=True"):
                metric(wrong, labels)


def test_a_hand_computed_example() -> None:
    probs = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.55, 0.45], [0.4, 0.6]], dtype=torch.float64)
    labels = torch.tensor([0, 0, 0, 1])  # right, wrong, right, right; confidences 0.9, 0.8, 0.55, 0.6
    assert M.top_k_error(probs, labels) == 0.25
    # Bins of a half: all four are in (0.5, 1]: accuracy 3/4, mean confidence 2.85/4.
    assert M.expected_calibration_error(probs, labels, 2).item() == pytest.approx(0.15 / 4)
    # Fifths: 0.55 and 0.6 (right, right) in (0.4, 0.6], 0.8 (wrong) in (0.6, 0.8], 0.9 (right) in (0.8, 1].
    bins = M.reliability_bins(probs, labels, 5)
    assert bins.counts.tolist() == [0, 0, 2, 1, 1]
    assert bins.edges.tolist() == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1])
    assert bins.accuracy[2:].tolist() == [1, 0, 1]
    assert bins.confidence[2:].tolist() == pytest.approx([0.575, 0.8, 0.9])
    assert bins.accuracy[:2].isnan().all()
    assert bins.confidence[:2].isnan().all()
    assert M.expected_calibration_error(probs, labels, 5).item() == pytest.approx((0.85 + 0.8 + 0.1) / 4)
    # Order right, wrong, right, right: risks 0, 1/2, 1/3, 1/4; at best the error comes last: 0, 0, 0, 1/4.
    assert M.risk_coverage_curve(probs, labels).risk.tolist() == pytest.approx([0, 1 / 2, 1 / 3, 1 / 4])
    assert M.area_under_risk_coverage(probs, labels).item() == pytest.approx(13 / 48)
    assert M.excess_area_under_risk_coverage(probs, labels).item() == pytest.approx(10 / 48)
    assert M.brier_score(probs, labels).item() == pytest.approx((0.02 + 1.28 + 0.405 + 0.32) / 4)
    assert M.negative_log_likelihood(probs, labels).item() == pytest.approx(
        -(math.log(0.9) + math.log(0.2) + math.log(0.55) + math.log(0.6)) / 4
    )


@pytest.mark.parametrize("classes", [2, 10])
def test_perfect_and_worst_predictors(classes: int) -> None:
    labels = torch.arange(20) % classes
    perfect = torch.eye(classes)[labels]
    worst = torch.eye(classes)[(labels + 1) % classes]
    for metric in (M.expected_calibration_error, M.area_under_risk_coverage, M.top_k_error):
        assert metric(perfect, labels) == 0
        assert metric(worst, labels) == 1
    assert M.brier_score(perfect, labels) == 0
    assert M.brier_score(worst, labels) == 2
    # Nothing can be ranked where all are right or all are wrong.
    assert M.excess_area_under_risk_coverage(perfect, labels) == 0
    assert M.excess_area_under_risk_coverage(worst, labels) == 0


def test_excess_is_zero_when_every_error_ranks_last() -> None:
    confidence = torch.linspace(1, 0.1, 10)
    correct = torch.arange(10) < 7
    assert 0 <= M.excess_area_under_risk_coverage_from(confidence, correct) < 1e-15
    assert M.excess_area_under_risk_coverage_from(confidence, correct.flip(0)) > 0.1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n_bins", [1, 2, 3, 7, 10, 15, 20])
def test_an_edge_belongs_to_the_bin_below_it_in_every_type(dtype: torch.dtype, n_bins: int) -> None:
    edges = torch.tensor([m / n_bins for m in range(n_bins + 1)], dtype=torch.float64).to(dtype)
    counts = M.reliability_bins_from(edges, torch.ones(n_bins + 1, dtype=torch.bool), n_bins).counts
    assert counts.tolist() == [2] + [1] * (n_bins - 1)  # 0 joins 1/n_bins in the first bin, 1 is in the last


def test_a_float32_edge_stays_on_its_edge_as_float64() -> None:
    edges = torch.arange(11, dtype=torch.float32) / 10
    correct = torch.ones(11, dtype=torch.bool)
    assert edges.double()[3] > 0.3  # the noise in question
    for confidence in (edges, edges.double()):
        assert M.reliability_bins_from(confidence, correct).counts.tolist() == [2] + [1] * 9


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_beside_an_edge_the_next_number_is_in_the_next_bin(dtype: torch.dtype) -> None:
    edges = (torch.arange(1, 10, dtype=torch.float64) / 10).to(dtype)
    for step, expected in ((2.0, [0] + [1] * 9), (-2.0, [1] * 9 + [0])):
        neighbours = torch.nextafter(edges, torch.full_like(edges, step))
        counts = M.reliability_bins_from(neighbours, torch.ones(9, dtype=torch.bool)).counts
        assert counts.tolist() == expected


@pytest.mark.parametrize("dtype", DTYPES)
def test_confidences_of_0_and_1(dtype: torch.dtype) -> None:
    confidence = torch.tensor([0.0, -0.0, 1.0, 1.0], dtype=dtype)
    correct = torch.tensor([True, False, True, False])
    bins = M.reliability_bins_from(confidence, correct)
    assert bins.counts.tolist() == [2] + [0] * 8 + [2]
    assert bins.confidence[[0, 9]].tolist() == [0, 1]
    assert bins.accuracy[[0, 9]].tolist() == [0.5, 0.5]
    assert M.expected_calibration_error_from(confidence, correct) == 0.5
    # Two groups of two, one error each (-0.0 and 0.0 are the same confidence): the risk is 1/2 throughout.
    assert M.risk_coverage_curve_from(confidence, correct).risk.tolist() == [0.5] * 4


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_float_type_agrees_with_the_definition_on_the_same_numbers(dtype: torch.dtype) -> None:
    probs, labels = predictions()
    probs = probs.to(dtype)
    confidence, correct = slow_confidence_and_correct(probs, labels)
    risks = slow_risks(confidence, correct)
    assert M.area_under_risk_coverage(probs, labels).item() == pytest.approx(sum(risks) / len(risks), abs=1e-14)
    in_float64 = M.top_k_error(probs.double(), labels, 3), M.brier_score(probs.double(), labels)
    assert M.top_k_error(probs, labels, 3) == in_float64[0]
    assert M.brier_score(probs, labels).item() == pytest.approx(in_float64[1].item(), abs=1e-6)
    bins = M.reliability_bins(probs, labels)
    rounded_edges = [Fraction(e) for e in (torch.arange(11, dtype=torch.float64) / 10).to(dtype).tolist()]
    where = [slow_bin(Fraction(c), rounded_edges) for c in confidence]
    assert bins.counts.tolist() == [where.count(m) for m in range(10)]


def test_half_precision_logits_are_reduced_in_float32() -> None:
    probs, labels = predictions()
    logits = probs.log().to(torch.bfloat16)
    exact = M.negative_log_likelihood(logits.double(), labels, from_logits=True).item()
    assert M.negative_log_likelihood(logits, labels, from_logits=True).item() == pytest.approx(exact, abs=1e-6)
    scores = M.score_samples(logits, labels, from_logits=True)
    assert scores.confidence.dtype == scores.nll.dtype == torch.float32


@pytest.mark.parametrize("make", [predictions, tied])
def test_the_order_of_samples_changes_nothing(make: Callable[[], tuple[Tensor, Tensor]]) -> None:
    probs, labels = make()
    probs = probs.float()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
    for metric in (
        M.top_k_error,
        M.expected_calibration_error,
        M.area_under_risk_coverage,
        M.excess_area_under_risk_coverage,
    ):
        assert metric(probs[order], labels[order]) == metric(probs, labels)
    for metric in (M.brier_score, M.negative_log_likelihood):
        torch.testing.assert_close(metric(probs[order], labels[order]), metric(probs, labels), rtol=1e-13, atol=0)


def test_rows_in_pieces_are_as_good_as_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    probs, labels = tied()
    metrics = (M.top_k_error, M.negative_log_likelihood, M.brier_score, M.expected_calibration_error)
    at_once = [metric(probs, labels) for metric in metrics]
    monkeypatch.setattr(M, "_CHUNK_NUMEL", 50)  # 7 rows of 7 classes; 300 is no multiple of it
    assert [metric(probs, labels) for metric in metrics] == at_once


def test_gradients_and_arguments_are_left_alone() -> None:
    probs, labels = predictions()
    probs.requires_grad_()
    before = probs.detach().clone()
    for metric in (M.expected_calibration_error, M.area_under_risk_coverage, M.brier_score, M.top_k_error):
        assert not metric(probs, labels.to(torch.uint8)).requires_grad
    assert not M.score_samples(probs, labels).nll.requires_grad
    torch.testing.assert_close(probs.detach(), before, rtol=0, atol=0)


def test_summary_of_batches_is_every_metric_in_the_papers_units() -> None:
    probs, labels = predictions()
    logits = probs.float().log() + 3
    probs = logits.softmax(1)
    batches = zip(logits.split(64), labels.split(64), strict=True)
    summary = M.summarize(M.SampleScores.cat(M.score_samples(*batch, from_logits=True) for batch in batches), n_bins=15)
    assert summary == pytest.approx(
        {
            "top1_error": 100 * M.top_k_error(probs, labels).item(),
            "top5_error": 100 * M.top_k_error(probs, labels, 5).item(),
            "nll": M.negative_log_likelihood(logits, labels, from_logits=True).item(),
            "ece": 100 * M.expected_calibration_error(probs, labels, 15).item(),
            "aurc": 1000 * M.area_under_risk_coverage(probs, labels).item(),
            "e_aurc": 1000 * M.excess_area_under_risk_coverage(probs, labels).item(),
            "brier": M.brier_score(probs, labels).item(),
        },
        abs=1e-12,
    )
    assert list(summary) == [name for name in METRICS if name in summary]
    json.dumps(summary)


def test_top_5_is_ranked_by_logits_where_probabilities_underflow() -> None:
    logits = -200.0 * torch.arange(8.0).flip(0)[None]  # class 7 first, then 6, ...; all but one have probability 0
    assert M.score_samples(logits, torch.tensor([3]), from_logits=True).top5_correct.item()
    assert not M.score_samples(logits, torch.tensor([2]), from_logits=True).top5_correct.item()


PROBS, LABELS = torch.full((4, 3), 1 / 3), torch.tensor([0, 1, 2, 0])
CONFIDENCE, CORRECT = torch.full((4,), 0.5), torch.tensor([True, False, True, True])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: M.top_k_error(PROBS[0], LABELS), r"probs must be floats of shape \(samples, classes\).*\(3,\)"),
        (lambda: M.brier_score(PROBS[:0], LABELS[:0]), r"probs .*at least 1 x 1, got float32 of shape \(0, 3\)"),
        (lambda: M.top_k_error(PROBS.int(), LABELS), r"probs must be floats .*int32"),
        (lambda: M.negative_log_likelihood(PROBS[:3], LABELS), r"labels .*\(3,\), one for each row of probs.*\(4,\)"),
        (lambda: M.expected_calibration_error(PROBS, LABELS[:, None]), r"labels must be class indices .*\(4, 1\)"),
        (lambda: M.area_under_risk_coverage(PROBS, LABELS.float()), r"labels must be class indices .*float32"),
        (lambda: M.area_under_risk_coverage(PROBS, CORRECT), r"labels must be class indices .*bool"),
        (lambda: M.score_samples(PROBS, LABELS + 1), r"labels must lie in 0 to 2, as probs has 3 classes, got 3"),
        (lambda: M.reliability_bins(PROBS, LABELS - 100), r"labels must lie in 0 to 2.* got -100: leave out"),
        (lambda: M.top_k_error(PROBS, LABELS, 0), "k must be at least 1, got 0"),
        (lambda: M.expected_calibration_error(PROBS, LABELS, 0), "n_bins must be at least 1, got 0"),
        (lambda: M.reliability_bins_from(CONFIDENCE, CORRECT, -1), "n_bins must be at least 1, got -1"),
        (lambda: M.expected_calibration_error(PROBS + 5, LABELS), r"sums 16 to 16\): of logits .* from_logits=True"),
        (lambda: M.brier_score(PROBS.log(), LABELS), r"probs: 4 of 4 rows are no probabilities, none negative"),
        (lambda: M.risk_coverage_curve_from(CONFIDENCE[:0], CORRECT[:0]), r"confidence .*at least 1, got .*\(0,\)"),
        (lambda: M.area_under_risk_coverage_from(PROBS, CORRECT), r"confidence must be floats of shape \(samples,\)"),
        (lambda: M.expected_calibration_error_from(CONFIDENCE, CORRECT[1:]), r"correct must be bool of shape \(4,\)"),
        (lambda: M.expected_calibration_error_from(CONFIDENCE, LABELS), r"correct must be bool .*got int64"),
        (
            lambda: M.summarize(M.score_samples(PROBS * torch.nan, LABELS, from_logits=True)),
            "got nan to nan: .* diverged",
        ),
    ],
)
def test_wrong_arguments_are_named_in_one_line(call: Callable[[], object], message: str) -> None:
    with pytest.raises(PskdError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_importing_the_metrics_loads_no_torchmetrics() -> None:
    code = (
        "import sys, torch; before = set(sys.modules); import pskd.metrics; pskd.metrics.summarize; "
        "new = {name.split('.')[0] for name in set(sys.modules) - before}; print(sorted(new - sys.stdlib_module_names))"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "['pskd']"
