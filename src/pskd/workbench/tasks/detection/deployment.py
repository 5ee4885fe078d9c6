"""What makes a finished detector ready to be used: its calibration and its export."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torchvision.ops import boxes as box_ops

from pskd import calibration
from pskd.errors import PskdError
from pskd.metrics.detection import Detections, Objects, judged
from pskd.workbench.runs.calibration import Calibration, Temperature

FEW = 10  # detections of a class, right and wrong ones; a class with fewer takes the temperature of all classes
INSIDE = 1e-6  # scores nearer to 0 or 1 count as this far away


class DetectionCalibration(Calibration):
    """A temperature for the scores of each class, and for each detection whether it was wrong (IoU 0.5).

    A threshold for a wanted precision counts the detections of one image as if they were independent.

    Args:
        temperatures: by class. The probability that a detection is right is sigmoid(logit(score) / temperature).
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
    def _same_lengths(self) -> DetectionCalibration:
        if len(self.scores) != self.samples or len(self.wrong) != self.samples:
            raise ValueError("its columns do not fit each other")
        return self

    @classmethod
    def fit(
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

    def calibrate_scores(self, scores: Tensor, names: list[str]) -> Tensor:
        """The probability (M) that each detection is right, from scores (M) and the names of their classes."""
        temperatures = torch.tensor([self.temperatures.get(name, 1.0) for name in names], dtype=torch.float64)
        return (_logits(scores)[:, 1] / temperatures).sigmoid()

    def min_score(self, max_risk: float) -> float:
        """The score below which to drop detections, so that at most this share of the others is wrong.

        Infinity: drop all.
        """
        scores = torch.tensor(self.scores, dtype=torch.float64)
        return calibration.threshold_of_confidence(scores, torch.tensor(self.wrong), max_risk, self.delta)

    def lines(self) -> list[str]:
        lines = [f"fitted on {self.samples:,} detections ({self.fitted_on})"]
        lines += [f"  temperature of {name}: {value:.4f}" for name, value in self.temperatures.items()]
        return [*lines, f"NLL of a detection's being right: {self.nll[0]:.4f} -> {self.nll[1]:.4f}"]

    def to_dict(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude={"scores", "wrong"})


def _logits(scores: Tensor) -> Tensor:
    """Logits of wrong (always 0) and right, (M, 2) in float64."""
    odds = scores.double().clamp(INSIDE, 1 - INSIDE).logit()
    return torch.stack((torch.zeros_like(odds), odds), 1)


class DeployedDetector(nn.Module):
    """Boxes (M, 4), labels (M) and scores (M) of one image that has its final size.

    Args:
        model: in evaluation mode.
        temperatures: by label, the background first. None leaves the scores as they are.
        pixels: take uint8 (H, W, C), as image libraries give them, instead of float32 (C, H, W) in 0..1.
    """

    temperatures: Tensor | None

    def __init__(self, model: nn.Module, temperatures: Sequence[float] | None = None, *, pixels: bool = False) -> None:
        super().__init__()
        self.model, self.takes_pixels = model, pixels
        self.register_buffer("temperatures", None if temperatures is None else torch.tensor(temperatures))

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.takes_pixels:
            image = image.permute(2, 0, 1).float() / 255
        tracing = torch.jit.is_tracing()  # type: ignore[attr-defined,no-untyped-call]
        with _traceable() if tracing else nullcontext():
            (objects,) = self.model([image])
        scores = objects["scores"]
        if self.temperatures is not None:
            inside = scores.clamp(INSIDE, 1 - INSIDE)
            scores = ((inside / (1 - inside)).log() / self.temperatures[objects["labels"]]).sigmoid()
        return objects["boxes"], objects["labels"], scores


def differences(answer: Sequence[Tensor], expected: Sequence[Tensor]) -> list[float]:
    """Of boxes, labels and scores: the largest between a detection and the nearest one in the other answer.

    The order does not count: detections whose scores differ by rounding only may change places.
    """
    if not len(answer[0]) or not len(expected[0]):
        return [0.0 if len(answer[0]) == len(expected[0]) else torch.inf] * 3
    one, other = (
        torch.cat((boxes, 1e4 * labels[:, None], scores[:, None]), 1) for boxes, labels, scores in (answer, expected)
    )
    far = torch.cdist(one, other, p=torch.inf)
    first = torch.cat((torch.arange(len(one)), far.argmin(0)))
    second = torch.cat((far.argmin(1), torch.arange(len(other))))
    return [float((a[first] - b[second]).abs().max()) for a, b in zip(answer, expected, strict=True)]


@contextmanager
def _traceable() -> Iterator[None]:
    """Replaces torchvision's non-maximum suppression, a script that the ONNX exporter cannot follow, by plain code."""
    before = box_ops.batched_nms
    box_ops.batched_nms = _batched_nms
    try:
        yield
    finally:
        box_ops.batched_nms = before


def _batched_nms(boxes: Tensor, scores: Tensor, labels: Tensor, iou_threshold: float) -> Tensor:
    """The boxes (M, 4) to keep. Boxes of different labels are moved apart first. M may be 0."""
    beyond = torch.cat((boxes.flatten(), boxes.new_zeros(1))).max() + 1
    kept: Tensor = box_ops.nms(boxes + (labels.to(boxes) * beyond)[:, None], scores, iou_threshold)
    return kept
