"""What is found out about a detector's scores on images that it was not trained on."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from pskd import calibration
from pskd.errors import PskdError
from pskd.metrics.detection import Detections, Objects, judged
from pskd.workbench.runs.calibration import Calibration, Temperature

FEW = 10  # detections of a class, right and wrong ones, below which it takes the temperature of all classes together
INSIDE = 1e-6  # how near to 0 and 1 a score counts


class DetectionCalibration(Calibration):
    """A temperature for the scores of each class, and of each detection whether it was wrong (IoU 0.5).

    A threshold for a wanted precision counts the detections of one image as if they were independent.

    Args:
        temperatures: by class; the probability that a detection is right is the sigmoid of its score's logit divided by
            that.
        nll: of these probabilities, before and after.
        delta: the probability that the promise of a threshold fails.
        scores, wrong: of each detection.
    """

    temperatures: dict[str, Temperature]
    nll: tuple[float, float]
    delta: Annotated[float, Field(gt=0, lt=1)] = 0.05
    scores: tuple[Annotated[float, Field(ge=0, le=1)], ...]
    wrong: tuple[bool, ...]

    @model_validator(mode="after")
    def _one_of_each(self) -> DetectionCalibration:
        if len(self.scores) != self.samples or len(self.wrong) != self.samples:
            raise ValueError("its columns do not fit each other")
        return self

    @classmethod
    def fitted(
        cls, objects: Objects, detections: Detections, classes: tuple[str, ...], **about: Any
    ) -> DetectionCalibration:
        """From a split's objects and what was detected there."""
        right, wrong = judged(objects, detections, len(classes))
        counted = right | wrong
        if not counted.any():
            raise PskdError("nothing was detected on these images, so there is nothing to calibrate: train it longer")
        labels = torch.from_numpy(detections.label[counted])
        scores = torch.from_numpy(detections.scores[counted])
        correct = torch.from_numpy(right[counted]).long()
        logits = _logits(scores)
        together = calibration.fit_temperature(logits, correct)
        by_class = []
        for label in range(len(classes)):
            own = labels == label
            counts = np.bincount(correct[own], minlength=2)
            enough = counts.min() >= FEW
            by_class.append(calibration.fit_temperature(logits[own], correct[own]) if enough else together)
        scaled = logits / torch.tensor(by_class, dtype=torch.float64)[labels][:, None]
        nll = tuple(float(torch.nn.functional.cross_entropy(each, correct)) for each in (logits, scaled))
        return cls(
            temperatures=dict(zip(classes, by_class, strict=True)),
            nll=nll,
            samples=len(scores),
            scores=scores.tolist(),
            wrong=(correct == 0).tolist(),
            **about,
        )

    def calibrated(self, scores: Tensor, names: list[str]) -> Tensor:
        """The probability (M) that each detection is right, of scores (M) and the names of their classes."""
        temperatures = torch.tensor([self.temperatures.get(name, 1.0) for name in names], dtype=torch.float64)
        return (_logits(scores)[:, 1] / temperatures).sigmoid()

    def min_score(self, max_risk: float) -> float:
        """The score below which to drop detections, so that of the others so many are wrong; infinity: all."""
        scores = torch.tensor(self.scores, dtype=torch.float64)
        return calibration.threshold_of_confidence(scores, torch.tensor(self.wrong), max_risk, self.delta)

    def lines(self) -> list[str]:
        found = [f"fitted on {self.samples:,} detections ({self.fitted_on})"]
        found += [f"  temperature of {name}: {value:.4f}" for name, value in self.temperatures.items()]
        return [*found, f"NLL of a detection's being right: {self.nll[0]:.4f} -> {self.nll[1]:.4f}"]

    def to_dict(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude={"scores", "wrong"})


def _logits(scores: Tensor) -> Tensor:
    """Of being wrong (always 0) and right, (M, 2) in float64."""
    odds = scores.double().clamp(INSIDE, 1 - INSIDE).logit()
    return torch.stack((torch.zeros_like(odds), odds), 1)
