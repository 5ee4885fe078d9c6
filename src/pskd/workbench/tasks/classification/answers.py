"""What a classifier says of an image: its likeliest classes, a set that holds the true one, or that it is not sure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pskd.calibration import prediction_sets
from pskd.errors import one_line
from pskd.workbench.data import View
from pskd.workbench.data.opening import OpenedImages
from pskd.workbench.tasks.classification.calibration import ClassCalibration, probabilities
from pskd.workbench.tasks.predictor import Answer


class Prediction(Answer):
    """The likeliest classes of one image, most likely first, with their probabilities.

    Args:
        names: the set of classes that was asked for by a coverage, the likeliest first.
        sure: whether an answer keeps the risk that was asked for.
    """

    def __init__(
        self,
        image: str,
        classes: list[tuple[str, float]],
        names: list[str] | None = None,
        sure: bool | None = None,
    ) -> None:
        self.image, self.classes, self.set, self.sure = image, classes, names, sure

    @property
    def label(self) -> str:
        """The likeliest class."""
        return self.classes[0][0]

    @property
    def confidence(self) -> float:
        """Its probability."""
        return self.classes[0][1]

    def __repr__(self) -> str:
        return f"Prediction({self.image!r}: {', '.join(f'{name} {share:.1%}' for name, share in self.classes)})"

    def text(self) -> str:
        lines = [one_line(self.image)]
        if self.sure is False:
            likeliest = ", ".join(f"{one_line(name)} {share:.0%}" for name, share in self.classes[:2])
            lines.append(f"  not sure: {likeliest}")
        elif self.set is None:
            lines += [f"  {share:7.2%}  {one_line(name)}" for name, share in self.classes]
        if self.set is not None:
            lines.append(f"  one of: {', '.join(map(one_line, self.set))}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {"image": self.image, "classes": self.classes}
        if self.set is not None:
            found["set"] = self.set
        if self.sure is not None:
            found["sure"] = self.sure
        return found

    def row(self) -> dict[str, str]:
        """For a line of a table."""
        cells = {"image": self.image, "class": self.label, "probability": f"{self.confidence:.6f}"}
        if self.set is not None:
            cells["set"] = "|".join(self.set)
        if self.sure is not None:
            cells["sure"] = "yes" if self.sure else "no"
        return cells


class Answering:
    """Makes answers of opened images; its thresholds are found once. ``coverage`` and ``max_risk`` need ``fitted``."""

    def __init__(
        self,
        model: nn.Module,
        view: View,
        classes: Sequence[str],
        device: torch.device,
        fitted: ClassCalibration | None,
        top: int,
        coverage: float | None,
        max_risk: float | None,
    ) -> None:
        self.model, self.view, self.classes, self.device = model, view, classes, device
        self.top = min(top, len(classes))
        self.temperature = 1.0 if fitted is None else fitted.temperature
        self.sets = None if coverage is None or fitted is None else fitted.set_threshold(coverage)
        self.least = None if max_risk is None or fitted is None else fitted.reject_threshold(max_risk)

    def __call__(self, opened: OpenedImages) -> list[Prediction]:
        """An answer to each image that could be read."""
        if not len(opened.pixels):
            return []
        logits = self.model(self.view.normalize(opened.pixels.to(self.device, non_blocking=True))).float().cpu()
        values, which = torch.softmax(logits / self.temperature, 1).topk(self.top)
        likeliest = [
            [(self.classes[c], share) for c, share in zip(own, shares, strict=True)]
            for own, shares in zip(which.tolist(), values.tolist(), strict=True)
        ]
        members: Sequence[list[str] | None] = [None] * len(logits)
        sure: Sequence[bool | None] = [None] * len(logits)
        if self.sets is not None:
            members = self._members(prediction_sets(probabilities(logits), self.sets), logits)
        if self.least is not None:
            sure = (probabilities(logits).amax(1) >= self.least).tolist()
        names = [name for name, error in zip(opened.names, opened.errors, strict=True) if error is None]
        return [Prediction(*each) for each in zip(names, likeliest, members, sure, strict=True)]

    def _members(self, inside: Tensor, logits: Tensor) -> list[list[str]]:
        """The classes of each set (B, K), the likeliest first."""
        order = logits.argsort(dim=1, descending=True, stable=True)
        kept = inside.gather(1, order)
        sizes, members = kept.sum(1).tolist(), order[kept].tolist()
        ends = torch.tensor(sizes).cumsum(0).tolist()
        return [[self.classes[c] for c in members[end - size : end]] for size, end in zip(sizes, ends, strict=True)]
