"""torchmetrics classes over ``pskd.metrics.functional``: they join a MetricCollection and sum over processes.

Each is updated with what its function takes: ``probs`` (N, K), rows that sum to 1, and ``labels`` (N,). With
``from_logits=True`` it is given logits, or log-probabilities, instead. Each computes a plain fraction.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, TypeVar

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from pskd.errors import PskdError
from pskd.metrics import functional

State = TypeVar("State", Tensor, list[Tensor])


class _PskdMetric(Metric):
    is_differentiable = False
    higher_is_better = False
    full_state_update = False

    def __init__(self, from_logits: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.from_logits = from_logits


class _SampleMean(_PskdMetric):
    """A mean over samples. ``state`` names its two sums, of the values and of the samples.

    A MetricCollection lets metrics share a state that has one name and, after the first batch, one value: no two
    different means may use the same name, or a first batch without errors would make top-1 and top-5 one metric.
    """

    def __init__(self, state: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._state = state
        self.add_state(state, torch.zeros(2, dtype=torch.float64), dist_reduce_fx="sum")

    @abstractmethod
    def batch_mean(self, probs: Tensor, labels: Tensor) -> Tensor: ...

    def update(self, probs: Tensor, labels: Tensor) -> None:
        total = self.batch_mean(probs, labels) * len(labels)
        batch = torch.stack([total, torch.full_like(total, len(labels))])
        setattr(self, self._state, getattr(self, self._state) + batch)

    def compute(self) -> Tensor:
        sums: Tensor = _seen(self, getattr(self, self._state))
        return sums[0] / sums[1]


class TopKError(_SampleMean):
    """Share of samples whose label is not among the k most probable classes."""

    def __init__(self, k: int = 1, **kwargs: Any) -> None:
        functional.AT_LEAST_ONE.check("k", k)
        super().__init__(f"top_{k}_errors", **kwargs)
        self.k = k

    def batch_mean(self, probs: Tensor, labels: Tensor) -> Tensor:
        return functional.top_k_error(probs, labels, self.k, from_logits=self.from_logits)


class NegativeLogLikelihood(_SampleMean):
    """Mean of -log p(label), in nats."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("nll", **kwargs)

    def batch_mean(self, probs: Tensor, labels: Tensor) -> Tensor:
        return functional.negative_log_likelihood(probs, labels, from_logits=self.from_logits)


class BrierScore(_SampleMean):
    """Mean squared distance from the one-hot label, summed over classes."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("brier", **kwargs)

    def batch_mean(self, probs: Tensor, labels: Tensor) -> Tensor:
        return functional.brier_score(probs, labels, from_logits=self.from_logits)


class ExpectedCalibrationError(_PskdMetric):
    """ECE over ``n_bins`` equally wide bins; the state is three sums per bin, however many samples there are."""

    sums: Tensor

    def __init__(self, n_bins: int = 10, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        functional.AT_LEAST_ONE.check("n_bins", n_bins)
        self.n_bins = n_bins
        self.add_state("sums", torch.zeros(3, n_bins, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, probs: Tensor, labels: Tensor) -> None:
        confidence, correct = functional.confidence_and_correct(probs, labels, from_logits=self.from_logits)
        self.sums += functional.bin_sums(confidence, correct, self.n_bins)

    def compute(self) -> Tensor:
        return functional.calibration_error_of_sums(_seen(self, self.sums))


class AreaUnderRiskCoverage(_PskdMetric):
    """AURC. The ranking needs every sample: the state is one float per sample."""

    # Confidence, with a minus sign where the prediction was wrong. One vector of the metric's own dtype, because an
    # empty one of that is what torchmetrics sends for a process that has seen no sample.
    signed_confidence: list[Tensor]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("signed_confidence", [], dist_reduce_fx="cat")

    def update(self, probs: Tensor, labels: Tensor) -> None:
        confidence, correct = functional.confidence_and_correct(probs, labels, from_logits=self.from_logits)
        self.signed_confidence.append(torch.where(correct, confidence, -confidence).to(self.dtype))

    def compute(self) -> Tensor:
        signed = dim_zero_cat(_seen(self, self.signed_confidence))
        return self.area(signed.abs(), ~signed.signbit())

    def area(self, confidence: Tensor, correct: Tensor) -> Tensor:
        return functional.area_under_risk_coverage_from(confidence, correct)


class ExcessAreaUnderRiskCoverage(AreaUnderRiskCoverage):
    """E-AURC; in a collection it shares its state with ``AreaUnderRiskCoverage``."""

    def area(self, confidence: Tensor, correct: Tensor) -> Tensor:
        return functional.excess_area_under_risk_coverage_from(confidence, correct)


def _seen(metric: Metric, state: State) -> State:
    """The state of a metric that has seen a sample; without one, its mean would be 0/0."""
    if not (state.any() if isinstance(state, Tensor) else state):
        raise PskdError(f"{type(metric).__name__} has seen no sample: call update(probs, labels) before compute()")
    return state
