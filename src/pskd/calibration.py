"""Confidence put to use after training: temperature, sets that hold the truth, and a threshold below which to abstain.

All of it is fitted on samples that the model was not trained on and that are not the test set, and holds for data like
them: conformal sets and the reject threshold are guarantees over the draw of these samples.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pskd.errors import PskdError

_COLDEST, _HOTTEST = 1e-2, 1e2  # temperatures that are looked at
_HALVINGS = 60  # of an interval: more than a double has bits


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """The T in 0.01..100 that minimises the mean of ``-log softmax(logits / T)[label]``.

    The mean is convex in 1/T, so the sign of its slope says on which side the minimum lies: no step size, no start.

    Args:
        logits: (N, K); -inf marks classes that are ruled out.
        labels: (N) class indices.

    Reference: Guo, Pleiss, Sun, Weinberger: On Calibration of Modern Neural Networks, ICML 2017.
    """
    _check(logits, labels)
    z = logits.double()
    own = z.gather(1, labels[:, None])[:, 0]
    if not bool(own.isfinite().all()) or bool((z.isnan() | (z == math.inf)).any()):
        raise PskdError("logits: a label's logit is not finite, or one is NaN or +inf: no temperature mends that")
    if z.shape[1] == 1:
        return 1.0
    finite = z.masked_fill(z == -math.inf, 0)
    low, high = 1 / _HOTTEST, 1 / _COLDEST  # of 1/T
    for _ in range(_HALVINGS):
        inverse = math.sqrt(low * high)
        slope = ((inverse * z).softmax(1) * finite).sum(1) - own
        low, high = (inverse, high) if float(slope.mean()) < 0 else (low, inverse)
    return 1 / math.sqrt(low * high)


def conformal_threshold(
    probs: Tensor, labels: Tensor, coverage: float = 0.9, *, by_class: bool = False, noise: Tensor | None = None
) -> Tensor:
    """The threshold for ``prediction_sets`` whose sets hold the label with probability ``coverage`` at least.

    The score of a class is the mass of all classes that are at least as likely (adaptive prediction sets), and 0 for
    the likeliest one, which is in every set: sets hold the label more often than they have to only where the likeliest
    class alone is right as often. The threshold is the ``ceil((N + 1) * coverage)``-th smallest score of the labels,
    which is exact for any finite N.

    Args:
        probs: (N, K), rows that sum to 1.
        labels: (N) class indices.
        coverage: in (0, 1).
        by_class: one threshold for each class (K), so that the coverage holds for every class by itself; a class with
            too few samples gets infinity, and is in every set.
        noise: (N) uniform numbers in [0, 1): the sets are then randomised and hold the label in just that share.

    Returns:
        A number as a tensor (), or (K).

    Reference: Romano, Sesia, Candes: Classification with Valid and Adaptive Coverage, NeurIPS 2020.
    """
    _check(probs, labels)
    scores = adaptive_scores(probs, noise).gather(1, labels[:, None])[:, 0]
    return threshold_of_scores(scores, coverage, labels if by_class else None, probs.shape[1])


def threshold_of_scores(scores: Tensor, coverage: float, labels: Tensor | None = None, num_classes: int = 0) -> Tensor:
    """``conformal_threshold`` of the labels' own scores (N); with ``labels`` one for each of ``num_classes``."""
    if not 0 < coverage < 1:
        raise PskdError(f"coverage must lie in (0, 1), got {coverage}")
    if labels is not None:
        return torch.stack([_quantile(scores[labels == c], coverage) for c in range(num_classes)])
    needed = math.ceil(coverage / (1 - coverage) - 1e-9)
    if len(scores) < needed:
        raise PskdError(f"a coverage of {coverage:g} needs {needed} samples at least, these are {len(scores)}")
    return _quantile(scores, coverage)


def prediction_sets(probs: Tensor, threshold: Tensor | float, noise: Tensor | None = None) -> Tensor:
    """True (N, K) for the classes of each sample's set; the likeliest class is always in it.

    Args:
        probs: (N, K), rows that sum to 1.
        threshold: of ``conformal_threshold``.
        noise: (N) uniform numbers in [0, 1), if the threshold was made with such.
    """
    return adaptive_scores(probs, noise) <= torch.as_tensor(threshold, dtype=torch.float64, device=probs.device)


def reject_threshold(probs: Tensor, labels: Tensor, max_risk: float, delta: float = 0.05) -> float:
    """The lowest confidence found at which the error rate of what is kept is ``max_risk`` at most, with probability
    ``1 - delta``; infinity where no threshold can promise it: then abstain always.

    A binary search over thresholds (SGR); each one's error rate is bounded by the exact binomial bound (Clopper and
    Pearson), with an equal part of delta.

    Args:
        probs: (N, K).
        labels: (N) class indices.
        max_risk: in (0, 1), the error rate to stay below.
        delta: in (0, 1), the probability that the promise fails.

    Reference: Geifman, El-Yaniv: Selective Classification for Deep Neural Networks, NeurIPS 2017.
    """
    _check(probs, labels)
    sure, guess = probs.max(1)
    return threshold_of_confidence(sure, guess != labels, max_risk, delta)


def threshold_of_confidence(sure: Tensor, wrong: Tensor, max_risk: float, delta: float = 0.05) -> float:
    """``reject_threshold`` of how sure a model was (N), and whether it was wrong (N)."""
    for name, value in (("max_risk", max_risk), ("delta", delta)):
        if not 0 < value < 1:
            raise PskdError(f"{name} must lie in (0, 1), got {value}")
    count = len(wrong)
    steps = count.bit_length()  # thresholds that the search below looks at, at most
    needed = math.ceil(math.log(delta / steps) / math.log1p(-max_risk))
    if count < needed:
        raise PskdError(
            f"an error rate below {max_risk:g} with probability {1 - delta:g} needs {needed} samples at least, even if"
            f" none is wrong; these are {count}"
        )
    order = sure.argsort(descending=True, stable=True)
    confidence, errors = sure[order].tolist(), wrong[order].cumsum(0).tolist()
    best, low, high = math.inf, 0, count - 1
    while low <= high:
        middle = (low + high) // 2
        last = middle
        while last + 1 < count and confidence[last + 1] == confidence[middle]:
            last += 1  # a threshold keeps all samples of one confidence, or none
        # The same as risk_bound(...) <= max_risk, without looking for the bound.
        if _chance(errors[last], last + 1, max_risk) <= delta / steps:
            best, low = confidence[middle], last + 1
        else:
            high = middle - 1
    return best


def adaptive_scores(probs: Tensor, noise: Tensor | None = None) -> Tensor:
    """The mass of all classes that are at least as likely as each class, (N, K) in float64; 0 for the likeliest.

    It is in every set, so it has the lowest score: were it only added afterwards, sets would hold the label too often.
    """
    ordered, order = torch.sort(probs.double(), dim=1, descending=True, stable=True)
    mass = ordered.cumsum(1)
    if noise is not None:
        mass = mass - noise.double()[:, None] * ordered
    mass[:, 0] = 0
    return torch.empty_like(mass).scatter(1, order, mass)


def risk_bound(errors: int, count: int, delta: float) -> float:
    """The error rate r for which so few errors, or fewer, among ``count`` have probability ``delta``.

    The true rate is above it with probability delta at most, whatever it is.
    """
    if errors >= count:
        return 1.0
    low, high = errors / count, 1.0
    for _ in range(_HALVINGS):
        rate = (low + high) / 2
        low, high = (rate, high) if _chance(errors, count, rate) > delta else (low, rate)
    return high


def _chance(errors: int, count: int, rate: float) -> float:
    """The probability of so few errors, or fewer, among ``count`` if each sample is one with probability ``rate``."""
    if errors >= count or rate <= 0:
        return 1.0
    if rate >= 1:
        return 0.0
    k = torch.arange(errors + 1, dtype=torch.float64)
    n = torch.tensor(float(count), dtype=torch.float64)
    ways = torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)
    return float((ways + k * math.log(rate) + (n - k) * math.log1p(-rate)).logsumexp(0).exp())


def _quantile(scores: Tensor, coverage: float) -> Tensor:
    rank = math.ceil((len(scores) + 1) * coverage - 1e-9)
    return scores.sort().values[rank - 1] if rank <= len(scores) else scores.new_tensor(math.inf)


def _check(rows: Tensor, labels: Tensor) -> None:
    if rows.ndim != 2 or not rows.is_floating_point() or rows.shape[1] == 0:
        raise PskdError(f"logits or probs must be floating point (N, K), got {rows.dtype} {tuple(rows.shape)}")
    if labels.shape != rows.shape[:1] or labels.is_floating_point() or not len(labels):
        raise PskdError(f"labels must be class indices ({len(rows)},), one at least, got {tuple(labels.shape)}")
    if int(labels.min()) < 0 or int(labels.max()) >= rows.shape[1]:
        raise PskdError(f"labels: {int(labels.min())}..{int(labels.max())} is not inside 0..{rows.shape[1] - 1}")
