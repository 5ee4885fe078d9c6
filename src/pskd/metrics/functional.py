"""Error, likelihood, calibration and ranking of a classifier's predictions: pure functions, plain fractions.

Two levels. The first takes ``probs`` (N, K), rows that sum to 1, and ``labels`` (N,), class indices; logits, or
log-probabilities, are given with ``from_logits=True``. The classes of the same names do the same. Calibration and
ranking need only how sure the model was and whether it was right, so the second level, the same names with ``_from``,
takes ``confidence`` (N,) in 0 to 1 and ``correct`` (N,) of type bool. An evaluation loop keeps a few such vectors per
batch (``score_samples``), joins them, and calls ``summarize`` once.

Every result is a float64 tensor that does not depend on the order of the samples. Where several classes are equally
probable, the lowest index is the prediction, as ``argmax`` has it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pskd.checks import improper
from pskd.errors import PskdError
from pskd.metrics.catalogue import FACTORS, METRICS
from pskd.settings import Range

# Rows are worked on in pieces of about this many numbers, so that temporaries stay small.
_CHUNK_NUMEL = 2**22

AT_LEAST_ONE = Range(ge=1)


class ReliabilityBins(NamedTuple):
    """A reliability diagram: M equally wide bins, bin m being (edges[m], edges[m + 1]]. Means of empty bins are NaN."""

    edges: Tensor  # (M + 1,)
    counts: Tensor  # (M,) int64, samples
    confidence: Tensor  # (M,) mean confidence
    accuracy: Tensor  # (M,)


class RiskCoverage(NamedTuple):
    """The error rate among the most confident samples: ``risk[i]`` when the first i + 1 of N are covered."""

    coverage: Tensor  # (N,) (i + 1) / N
    risk: Tensor  # (N,)


class SampleScores(NamedTuple):
    """All that the metrics need to know of each sample; every field is (N,)."""

    confidence: Tensor
    correct: Tensor  # bool
    top5_correct: Tensor  # bool; with K < 5 classes, among the first K
    nll: Tensor
    brier: Tensor

    @classmethod
    def cat(cls, parts: Iterable[SampleScores]) -> SampleScores:
        """Join the scores of several batches or processes."""
        return cls(*map(torch.cat, zip(*parts, strict=True)))


def top_k_error(probs: Tensor, labels: Tensor, k: int = 1, *, from_logits: bool = False) -> Tensor:
    """Share of samples whose label is not among the k most probable classes (all K if there are fewer than k).

    Of logits, NaN ranks first, and a label that scored NaN last.
    """
    AT_LEAST_ONE.check("k", k)
    chunks = _chunks(probs, labels, from_logits)
    return _mean(torch.cat([_label_rank(rows, y) >= min(k, rows.shape[1]) for rows, y in chunks]))


def negative_log_likelihood(probs: Tensor, labels: Tensor, *, from_logits: bool = False) -> Tensor:
    """Mean of -log p(label), in nats; infinite if a label had probability 0.

    Logits are the better choice where they exist: from their log-softmax, no probability is too small.
    """
    each = _nll if from_logits else _nll_of_probs
    return _mean(torch.cat([each(rows, y) for rows, y in _chunks(probs, labels, from_logits)]))


def brier_score(probs: Tensor, labels: Tensor, *, from_logits: bool = False) -> Tensor:
    """Mean squared distance of the probabilities from the one-hot label, summed over classes: 0 (best) to 2."""
    chunks = _chunks(probs, labels, from_logits)
    return _mean(torch.cat([_brier(softmax(rows) if from_logits else rows, y) for rows, y in chunks]))


def expected_calibration_error(probs: Tensor, labels: Tensor, n_bins: int = 10, *, from_logits: bool = False) -> Tensor:
    """ECE: mean distance between confidence and accuracy over equally wide bins, weighted by their counts."""
    return expected_calibration_error_from(*confidence_and_correct(probs, labels, from_logits=from_logits), n_bins)


def reliability_bins(probs: Tensor, labels: Tensor, n_bins: int = 10, *, from_logits: bool = False) -> ReliabilityBins:
    """Count, mean confidence and accuracy in each of ``n_bins`` equally wide bins of confidence."""
    return reliability_bins_from(*confidence_and_correct(probs, labels, from_logits=from_logits), n_bins)


def area_under_risk_coverage(probs: Tensor, labels: Tensor, *, from_logits: bool = False) -> Tensor:
    """AURC: the mean risk over all coverages 1/N, 2/N, ..., 1; low if errors are made with low confidence."""
    return area_under_risk_coverage_from(*confidence_and_correct(probs, labels, from_logits=from_logits))


def excess_area_under_risk_coverage(probs: Tensor, labels: Tensor, *, from_logits: bool = False) -> Tensor:
    """E-AURC: AURC minus the lowest AURC possible with as many errors; 0 if every error ranks below every hit."""
    return excess_area_under_risk_coverage_from(*confidence_and_correct(probs, labels, from_logits=from_logits))


def risk_coverage_curve(probs: Tensor, labels: Tensor, *, from_logits: bool = False) -> RiskCoverage:
    """The error rate among the most confident samples, for each number of them."""
    return risk_coverage_curve_from(*confidence_and_correct(probs, labels, from_logits=from_logits))


def confidence_and_correct(probs: Tensor, labels: Tensor, *, from_logits: bool = False) -> tuple[Tensor, Tensor]:
    """How sure the model was, ``probs.amax(1)``, and whether it was right (bool): the second level's arguments."""
    labels = _checked(probs, labels, from_logits)
    probs = softmax(probs.detach()) if from_logits else probs.detach()
    confidence = probs.amax(1)
    correct = probs.gather(1, labels[:, None]).squeeze(1) == confidence
    # Right, unless a class before the label is as probable. To look for it in every row would take several times as
    # long as all the rest; but two classes of that probability make the row's norm at least 1.41 times as large.
    norm = torch.linalg.vector_norm(probs, dim=1)
    doubtful = (correct & (norm >= 1.38 * confidence)).nonzero().squeeze(1)
    for rows in torch.split(doubtful, _chunk_rows(probs)):
        correct[rows] = probs.index_select(0, rows).argmax(1) == labels[rows]
    return confidence, correct


def expected_calibration_error_from(confidence: Tensor, correct: Tensor, n_bins: int = 10) -> Tensor:
    """ECE of ``confidence`` (N,) and ``correct`` (N,); the bins are those of ``reliability_bins_from``."""
    return calibration_error_of_sums(bin_sums(confidence, correct, n_bins))


def reliability_bins_from(confidence: Tensor, correct: Tensor, n_bins: int = 10) -> ReliabilityBins:
    """Count, mean confidence and accuracy per bin; bin m of M is (m/M, (m+1)/M], and 0 belongs to the first.

    A confidence is on an edge if it equals the edge rounded to its own type, float64 counting as float32: 0.3 is in
    (0.2, 0.3] of ten bins in every type, although float32's nearest number to it is a little above 3/10.
    """
    counts, confidence_sums, correct_sums = bin_sums(confidence, correct, n_bins)
    edges = torch.arange(n_bins + 1, dtype=torch.float64, device=confidence.device) / n_bins
    return ReliabilityBins(edges, counts.long(), confidence_sums / counts, correct_sums / counts)


def area_under_risk_coverage_from(confidence: Tensor, correct: Tensor) -> Tensor:
    """AURC of ``confidence`` (N,) and ``correct`` (N,)."""
    return risk_coverage_curve_from(confidence, correct).risk.mean()


def excess_area_under_risk_coverage_from(confidence: Tensor, correct: Tensor) -> Tensor:
    """E-AURC of ``confidence`` (N,) and ``correct`` (N,)."""
    return _excess(area_under_risk_coverage_from(confidence, correct), correct)


def risk_coverage_curve_from(confidence: Tensor, correct: Tensor) -> RiskCoverage:
    """The curve of ``confidence`` (N,) and ``correct`` (N,), most confident first.

    Tied samples count as if in random order, in expectation: within g samples of one confidence, e of them errors,
    that follow a samples with E errors, the risk at a + j is (E + j e/g) / (a + j).
    """
    _check_confidence(confidence, correct)
    # A float that is not negative sorts as its bits do, and torch sorts integers several times faster than floats,
    # but only upwards. abs() turns -0.0 into 0.0.
    magnitude = confidence.detach().to(torch.promote_types(confidence.dtype, torch.float32)).abs()
    bits = magnitude.view(torch.int64 if magnitude.dtype == torch.float64 else torch.int32)
    descending, order = bits.neg().sort()
    group_size = torch.unique_consecutive(descending, return_counts=True)[1]
    end = group_size.cumsum(0)
    errors_at_end = (~correct)[order].cumsum(0)[end - 1]
    group_errors = errors_at_end.diff(prepend=errors_at_end.new_zeros(1))
    # Within a group the errors grow on a line, at the rate e/g: its height at 0 is spread over the samples covered.
    rate = group_errors.double() / group_size
    rest = errors_at_end - end * rate
    covered = torch.arange(1, len(confidence) + 1, dtype=torch.float64, device=confidence.device)
    risk = rest.repeat_interleave(group_size).div_(covered).add_(rate.repeat_interleave(group_size))
    return RiskCoverage(covered / len(confidence), risk)


def score_samples(probs: Tensor, labels: Tensor, *, from_logits: bool = False) -> SampleScores:
    """What ``summarize`` needs of a batch: probabilities, or logits, (B, K) and class indices (B,)."""
    labels = _checked(probs, labels, from_logits)
    scores = probs.detach()
    probs = softmax(scores) if from_logits else scores
    # Ranked by logits: probabilities that round to the same number, such as 0, would be tied.
    rank = _label_rank(scores, labels)
    return SampleScores(
        confidence=probs.amax(1),
        correct=rank < 1,
        top5_correct=rank < min(5, scores.shape[1]),
        nll=(_nll if from_logits else _nll_of_probs)(scores, labels),
        brier=_brier(probs, labels),
    )


def summarize(scores: SampleScores, n_bins: int = 10) -> dict[str, float]:
    """A classifier's metrics by their names in the catalogue, in the units they have there (%, nats, x1000)."""
    confidence, correct, top5_correct, nll, brier = (values.cpu() for values in scores)
    aurc = area_under_risk_coverage_from(confidence, correct)
    fractions = {
        "top1_error": _mean(~correct),
        "top5_error": _mean(~top5_correct),
        "nll": _mean(nll),
        "ece": expected_calibration_error_from(confidence, correct, n_bins),
        "aurc": aurc,
        "e_aurc": _excess(aurc, correct),
        "brier": _mean(brier),
    }
    return {name: FACTORS[METRICS[name].unit] * fraction.item() for name, fraction in fractions.items()}


def _mean(values: Tensor) -> Tensor:
    return values.mean(dtype=torch.float64)


def _chunks(scores: Tensor, labels: Tensor, from_logits: bool) -> list[tuple[Tensor, Tensor]]:
    """Both arguments, checked and cut into pieces of rows that are worked on one after the other."""
    labels = _checked(scores, labels, from_logits)
    rows = _chunk_rows(scores)
    return list(zip(torch.split(scores.detach(), rows), torch.split(labels, rows), strict=True))


def _chunk_rows(scores: Tensor) -> int:
    return max(1, _CHUNK_NUMEL // scores.shape[1])


def softmax(logits: Tensor) -> Tensor:
    """Probabilities (N, K), at least in float32."""
    return F.softmax(logits, 1, dtype=torch.promote_types(logits.dtype, torch.float32))


def _nll(logits: Tensor, labels: Tensor) -> Tensor:
    log_probs = F.log_softmax(logits, 1, dtype=torch.promote_types(logits.dtype, torch.float32))
    return -log_probs.gather(1, labels[:, None]).squeeze(1)


def _nll_of_probs(probs: Tensor, labels: Tensor) -> Tensor:
    likely = probs.gather(1, labels[:, None]).squeeze(1)
    return -likely.to(torch.promote_types(probs.dtype, torch.float32)).clamp_min(0).log()


def _brier(probs: Tensor, labels: Tensor) -> Tensor:
    label = labels[:, None]
    distance = probs.to(torch.promote_types(probs.dtype, torch.float32))
    return distance.scatter(1, label, distance.gather(1, label) - 1).square_().sum(1)


def _label_rank(scores: Tensor, labels: Tensor) -> Tensor:
    """How many classes come before the label: those that score higher, or the same with a lower index."""
    label = labels[:, None]
    label_score = scores.gather(1, label)
    earlier = torch.arange(scores.shape[1], device=scores.device) < label
    # "not <=" and not ">": NaN then comes before everything, and a model that broke down is never right.
    return (~(scores <= label_score) | ((scores == label_score) & earlier)).sum(1)


def bin_sums(confidence: Tensor, correct: Tensor, n_bins: int) -> Tensor:
    """(3, n_bins) float64: the count, the sum of confidences and the number of correct samples of each bin."""
    _check_confidence(confidence, correct)
    AT_LEAST_ONE.check("n_bins", n_bins)
    confidence = confidence.detach()
    compared = confidence.float() if confidence.dtype == torch.float64 else confidence
    inner_edges = torch.arange(1, n_bins, dtype=torch.float64, device=confidence.device) / n_bins
    bins = torch.bucketize(compared, inner_edges.to(compared.dtype))
    wrong_and_right = torch.bincount(2 * bins + correct, minlength=2 * n_bins).view(n_bins, 2).double()
    confidence_sums = wrong_and_right.new_zeros(n_bins).index_add_(0, bins, confidence.double())
    return torch.stack([wrong_and_right.sum(1), confidence_sums, wrong_and_right[:, 1]])


def calibration_error_of_sums(sums: Tensor) -> Tensor:
    """The ECE of what ``bin_sums`` returned, or of the sum of several such tensors."""
    counts, confidence_sums, correct_sums = sums.unbind()
    return (confidence_sums - correct_sums).abs().sum() / counts.sum()


def _excess(area: Tensor, correct: Tensor) -> Tensor:
    """``area`` minus its lowest value, (1/n) sum over i = 1..r of i / (n - r + i), reached with all r errors last."""
    n, errors = len(correct), int((~correct).sum())
    i = torch.arange(1, errors + 1, dtype=torch.float64, device=correct.device)
    return (area - (i / (n - errors + i)).sum() / n).clamp(min=0)  # rounding may take it just below 0


def _checked(scores: Tensor, labels: Tensor, from_logits: bool) -> Tensor:
    """``labels`` as int64, once the two arguments fit each other, and probabilities are such."""
    name = "logits" if from_logits else "probs"
    if scores.ndim != 2 or not scores.is_floating_point() or scores.numel() == 0:
        raise PskdError(f"{name} must be floats of shape (samples, classes), at least 1 x 1, got {_kind(scores)}")
    if labels.shape != scores.shape[:1] or labels.is_floating_point() or labels.dtype == torch.bool:
        raise PskdError(
            f"labels must be class indices of shape ({len(scores)},), one for each row of {name}, got {_kind(labels)}"
        )
    low, high = torch.stack(labels.aminmax()).tolist()
    if low < 0 or high >= scores.shape[1]:
        raise PskdError(
            f"labels must lie in 0 to {scores.shape[1] - 1}, as {name} has {scores.shape[1]} classes, "
            f"got {low if low < 0 else high}: leave out samples without a label"
        )
    if not from_logits:
        wrong, sums = improper(scores)
        if bool(wrong.any()):
            raise PskdError(
                f"probs: {int(wrong.sum())} of {len(wrong)} rows are no probabilities, none negative and 1 in sum (sums"
                f" {float(sums.min()):.4g} to {float(sums.max()):.4g}): of logits or log-probabilities say"
                " from_logits=True; a model may also have diverged"
            )
    return labels.long()


def _check_confidence(confidence: Tensor, correct: Tensor) -> None:
    if confidence.ndim != 1 or not confidence.is_floating_point() or len(confidence) == 0:
        raise PskdError(f"confidence must be floats of shape (samples,), at least 1, got {_kind(confidence)}")
    if correct.shape != confidence.shape or correct.dtype != torch.bool:
        raise PskdError(f"correct must be bool of shape ({len(confidence)},) like confidence, got {_kind(correct)}")
    low, high = torch.stack(confidence.detach().aminmax()).tolist()
    if not (low >= 0 and high <= 1.001):  # NaN is neither; a sum of probabilities may round to a little over 1
        raise PskdError(
            f"confidence must lie in 0 to 1, got {low:.4g} to {high:.4g}: pass probabilities, such as "
            "logits.softmax(1), of a model that has not diverged"
        )


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"
