"""What makes a finished classifier ready to be used: its calibration and its export."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn

from pskd import calibration
from pskd.errors import PskdError
from pskd.metrics import functional
from pskd.metrics.catalogue import METRICS
from pskd.workbench.data import View
from pskd.workbench.runs.calibration import Calibration, Temperature

SHOWN_RISKS = (0.01, 0.05, 0.1)
CalibrationProbability = Annotated[float, Field(ge=0, le=1 + 1e-6)]


class Effect(BaseModel):
    """What the temperature changes on a split: metrics before and after, in the units of the tables."""

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
            functional.summarize(functional.score_samples(scaled, labels, from_logits=True), bins)
            for scaled in (log_probs, log_probs / temperature)
        )
        shown = ("nll", "ece")
        return cls(before={name: before[name] for name in shown}, after={name: after[name] for name in shown})


class ClassCalibration(Calibration):
    """A temperature, and for each sample what prediction sets and rejections need, for any coverage or risk.

    Sets and rejections use the probabilities as the network gives them, not the calibrated ones: the temperature is
    fitted on the same samples, which would weaken their guarantees a little.

    Args:
        effect: of the temperature, by split.
        by_class: whether each class has its own threshold for its sets.
        delta: the probability that the promise of a rejection threshold fails.
        labels, scores, confidence, wrong: for each sample its class, the probability of all classes that are at least
            as likely as this one (0 if it is the likeliest), the probability of the likeliest class, and whether that
            was another class.
    """

    temperature: Temperature
    ece_bins: int
    effect: dict[str, Effect]
    by_class: bool = False
    delta: Annotated[float, Field(gt=0, lt=1)] = 0.05
    classes: Annotated[int, Field(ge=1)]
    labels: tuple[Annotated[int, Field(ge=0)], ...]
    scores: tuple[CalibrationProbability, ...]
    confidence: tuple[CalibrationProbability, ...]
    wrong: tuple[bool, ...]

    @model_validator(mode="after")
    def _same_lengths(self) -> ClassCalibration:
        columns = (self.labels, self.scores, self.confidence, self.wrong)
        if any(len(column) != self.samples for column in columns) or max(self.labels) >= self.classes:
            raise ValueError("its columns do not fit each other")
        return self

    @classmethod
    def fit(cls, log_probs: Tensor, labels: Tensor, **about: Any) -> ClassCalibration:
        """From log-probabilities (N, K) and labels (N). ``about`` are the other fields."""
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
        """For ``pskd.calibration.prediction_sets``: one number (), or one for each class (K)."""
        labels = torch.tensor(self.labels) if self.by_class else None
        scores = torch.tensor(self.scores, dtype=torch.float64)
        return calibration.threshold_of_scores(scores, coverage, labels, self.classes)

    def reject_threshold(self, max_risk: float) -> float:
        """The confidence below which to give no answer. Infinity: never answer."""
        confidence = torch.tensor(self.confidence, dtype=torch.float64)
        return calibration.threshold_of_confidence(confidence, torch.tensor(self.wrong), max_risk, self.delta)

    def answer_share(self, max_risk: float) -> float:
        """The share of samples that would get an answer."""
        threshold = self.reject_threshold(max_risk)
        return sum(sure >= threshold for sure in self.confidence) / self.samples

    def lines(self) -> list[str]:
        lines = [*super().lines(), f"temperature {self.temperature:.4f}"]
        for split, effect in self.effect.items():
            changes = (
                f"{METRICS[name].heading} {METRICS[name].text(effect.before[name])} ->"
                f" {METRICS[name].text(effect.after[name])}"
                for name in effect.before
            )
            lines.append(f"  {split}: {', '.join(changes)}")
        for risk in SHOWN_RISKS:
            try:
                share = f"answers {self.answer_share(risk):.1%}"
            except PskdError as error:
                share = str(error)
            lines.append(f"  --max-risk {risk:g} (held with probability {1 - self.delta:g}): {share}")
        return lines

    def to_dict(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude={"labels", "scores", "confidence", "wrong"})


def probabilities(log_probs: Tensor) -> Tensor:
    """(N, K) in float64, which can tell apart the probabilities of very confident samples."""
    return log_probs.double().softmax(1)


class DeployedClassifier(nn.Module):
    """``softmax(model(x) / temperature)`` of the model's input, or of pixels if there is a ``view``.

    Args:
        model: in evaluation mode.
        temperature: 1 leaves the probabilities as they are.
        view: take uint8 images (N, H, W, C) of the view's size, as image libraries give them, instead of normalised
            float32 (N, C, H, W). Images are not scaled to that size here.
    """

    factor: Tensor
    shift: Tensor

    def __init__(self, model: nn.Module, temperature: float = 1.0, view: View | None = None) -> None:
        super().__init__()
        self.model, self.temperature, self.takes_pixels = model, temperature, view is not None
        if view is not None:
            std = torch.tensor(view.std, dtype=torch.float64)
            self.register_buffer("factor", (1 / (255 * std)).float())
            self.register_buffer("shift", (-torch.tensor(view.mean, dtype=torch.float64) / std).float())

    def forward(self, image: Tensor) -> Tensor:
        if self.takes_pixels:
            image = (image.float() * self.factor + self.shift).permute(0, 3, 1, 2)
        logits: Tensor = self.model(image)
        return torch.softmax(logits / self.temperature, 1)
