"""A detector as other programs get it: one image in, boxes, labels and scores out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torchvision.ops import boxes as box_ops

from pskd.workbench.tasks.detection.calibration import INSIDE


class DeployedDetector(nn.Module):
    """Boxes (M, 4), labels (M) and scores (M) of one image that has its final size.

    Args:
        model: in evaluation mode.
        temperatures: by label, from the background on; None leaves the scores as they are.
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
        traced = torch.jit.is_tracing()  # type: ignore[attr-defined,no-untyped-call]
        with _traceable() if traced else nullcontext():
            (found,) = self.model([image])
        scores = found["scores"]
        if self.temperatures is not None:
            inside = scores.clamp(INSIDE, 1 - INSIDE)
            scores = ((inside / (1 - inside)).log() / self.temperatures[found["labels"]]).sigmoid()
        return found["boxes"], found["labels"], scores


def differences(found: Sequence[Tensor], expected: Sequence[Tensor]) -> list[float]:
    """Of boxes, labels and scores: the largest between a detection and its nearest one in the other answer.

    The order does not count: scores that are equal but for rounding may change places.
    """
    if not len(found[0]) or not len(expected[0]):
        return [0.0 if len(found[0]) == len(expected[0]) else torch.inf] * 3
    one, other = (
        torch.cat((boxes, 1e4 * labels[:, None], scores[:, None]), 1) for boxes, labels, scores in (found, expected)
    )
    far = torch.cdist(one, other, p=torch.inf)
    pairs = torch.cat(
        (torch.stack((torch.arange(len(one)), far.argmin(1))), torch.stack((far.argmin(0), torch.arange(len(other))))),
        1,
    )
    return [float((a[pairs[0]] - b[pairs[1]]).abs().max()) for a, b in zip(found, expected, strict=True)]


@contextmanager
def _traceable() -> Iterator[None]:
    """torchvision's suppression of double boxes is a script, which the ONNX exporter fails on: one that is traced."""
    before = box_ops.batched_nms
    box_ops.batched_nms = _batched_nms
    try:
        yield
    finally:
        box_ops.batched_nms = before


def _batched_nms(boxes: Tensor, scores: Tensor, labels: Tensor, iou_threshold: float) -> Tensor:
    """The boxes (M, 4) to keep; those of one label are moved where no other label's are. M may be 0."""
    beyond = torch.cat((boxes.flatten(), boxes.new_zeros(1))).max() + 1
    kept: Tensor = box_ops.nms(boxes + (labels.to(boxes) * beyond)[:, None], scores, iou_threshold)
    return kept
