"""What is found out about a classifier's confidence on samples that it was not trained on."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from pskd import calibration
from pskd.errors import PskdError
from pskd.metrics import functional
from pskd.metrics.catalogue import METRICS
from pskd.workbench.runs.calibration import Calibration, Temperature

SHOWN_RISKS = (0.01, 0.05, 0.1)


class Effect(BaseModel):
    """What the temperature does to a split: metrics before and after, in the units of the tables."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    before: dict[str, float]
    after: dict[str, float]

    @model_validator(mode="after")
    def _same_metrics(self) -> Effect:
        if self.before.keys() != self.after.keys():
            raise ValueError("before and after do not name the same metrics")
        return self

    @classmethod
    def of(cls, log_probs: Tensor, labels: Tensor, temperature: float, bins: int) -> Effect:
        before, after = (
            functional.summarize(functional.score_samples(rows, labels, from_logits=True), bins)
            for rows in (log_probs, log_probs / temperature)
        )
        shown = ("nll", "ece")
        return cls(before={name: before[name] for name in shown}, after={name: after[name] for name in shown})


class ClassCalibration(Calibration):
    """A temperature, and of each sample what sets and rejections need, so that any coverage or risk can be asked for.

    Sets and rejections look at the probabilities as the network gives them, not at the calibrated ones: the temperature
    is fitted on the same samples, which would cost their guarantees a little.

    Args:
        effect: of the temperature, by split.
        by_class: whether each class has a threshold for its sets of its own.
        delta: the probability that the promise of a rejection threshold fails.
        labels, scores, confidence, wrong: of each sample its class, the mass of all classes that are at least as likely
            as that one (0 if it is the likeliest), the mass of the likeliest class, and whether that was another one.
    """

    temperature: Temperature
    ece_bins: int
    effect: dict[str, Effect]
    by_class: bool = False
    delta: Annotated[float, Field(gt=0, lt=1)] = 0.05
    classes: Annotated[int, Field(ge=1)]
    labels: tuple[Annotated[int, Field(ge=0)], ...]
    scores: tuple[Annotated[float, Field(ge=0, le=1 + 1e-6)], ...]
    confidence: tuple[Annotated[float, Field(ge=0, le=1 + 1e-6)], ...]
    wrong: tuple[bool, ...]

    @model_validator(mode="after")
    def _one_of_each(self) -> ClassCalibration:
        columns = (self.labels, self.scores, self.confidence, self.wrong)
        if any(len(column) != self.samples for column in columns) or max(self.labels) >= self.classes:
            raise ValueError("its columns do not fit each other")
        return self

    @classmethod
    def fitted(cls, log_probs: Tensor, labels: Tensor, **about: Any) -> ClassCalibration:
        """From log-probabilities (N, K) and labels (N); ``about`` are the other fields."""
        probs = probabilities(log_probs)
        confidence, guess = probs.max(1)
        return cls(
            temperature=calibration.fit_temperature(log_probs, labels),
            samples=len(labels),
            classes=probs.shape[1],
            labels=labels.tolist(),
            scores=calibration.adaptive_scores(probs).gather(1, labels[:, None])[:, 0].tolist(),
            confidence=confidence.tolist(),
            wrong=(guess != labels).tolist(),
            **about,
        )

    def set_threshold(self, coverage: float) -> Tensor:
        """For ``pskd.calibration.prediction_sets``: a number (), or one for each class (K)."""
        labels = torch.tensor(self.labels) if self.by_class else None
        scores = torch.tensor(self.scores, dtype=torch.float64)
        return calibration.threshold_of_scores(scores, coverage, labels, self.classes)

    def reject_threshold(self, max_risk: float) -> float:
        """The confidence below which to abstain; infinity: always."""
        confidence = torch.tensor(self.confidence, dtype=torch.float64)
        return calibration.threshold_of_confidence(confidence, torch.tensor(self.wrong), max_risk, self.delta)

    def answered(self, max_risk: float) -> float:
        """The share of such samples that would get an answer."""
        threshold = self.reject_threshold(max_risk)
        return sum(sure >= threshold for sure in self.confidence) / self.samples

    def lines(self) -> list[str]:
        found = [*super().lines(), f"temperature {self.temperature:.4f}"]
        for split, effect in self.effect.items():
            changes = (
                f"{METRICS[name].heading} {METRICS[name].text(effect.before[name])} ->"
                f" {METRICS[name].text(effect.after[name])}"
                for name in effect.before
            )
            found.append(f"  {split}: {', '.join(changes)}")
        for risk in SHOWN_RISKS:
            try:
                word = f"answers {self.answered(risk):.1%}"
            except PskdError as error:
                word = str(error)
            found.append(f"  --max-risk {risk:g} (held with probability {1 - self.delta:g}): {word}")
        return found

    def to_dict(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude={"labels", "scores", "confidence", "wrong"})


def probabilities(log_probs: Tensor) -> Tensor:
    """(N, K) in float64: a probability of nearly 1 stays below it, so that confident samples are told apart."""
    return log_probs.double().softmax(1)
