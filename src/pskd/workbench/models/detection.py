"""Faster R-CNN from torchvision's parts, on the trunk of an image classifier.

Ren et al., Faster R-CNN (NeurIPS 2015); Lin et al., Feature Pyramid Networks for Object Detection (CVPR 2017).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn
from torchvision.models import ResNet
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.rpn import AnchorGenerator
from torchvision.models.detection.transform import GeneralizedRCNNTransform
from torchvision.ops import MultiScaleRoIAlign
from torchvision.ops.poolers import initLevelMapper

from pskd.errors import PskdError
from pskd.workbench.models.base import StagedNet

POOLED = {"fpn": 7, "c4": 14}  # the side of what is pooled from a region; C4's last stage halves it
FPN_ANCHOR, C4_ANCHORS = 8, (8, 16, 32)  # sides in strides: 128, 256 and 512 pixels at C4's stride 16
ASPECTS = (0.5, 1.0, 2.0)


@dataclass(frozen=True)
class Trunk:
    """A classifier without its classifying layer: ``parts`` are the stem and the stages, each with a map to give.

    ``channels`` and ``strides`` are those of the stages' maps.
    """

    parts: tuple[nn.Module, ...]
    channels: tuple[int, ...]
    strides: tuple[int, ...]


def trunk_of(model: nn.Module, name: str) -> Trunk:
    """The trunk of a network with stages: one of this package, or torchvision's ResNet, ResNeXt or Wide ResNet."""
    if isinstance(model, StagedNet):
        stages = list(model.stages)
        if not isinstance(model.norm, nn.Identity):
            stages[-1] = nn.Sequential(stages[-1], model.norm)
        trunk = Trunk((model.stem, *stages), model.stage_channels, model.stage_strides)
    elif isinstance(model, ResNet):
        stem = nn.Sequential(model.conv1, model.bn1, model.relu, model.maxpool)
        stages = [model.layer1, model.layer2, model.layer3, model.layer4]
        widest = model.fc.in_features
        trunk = Trunk((stem, *stages), tuple(widest // 2 ** (3 - i) for i in range(4)), (4, 8, 16, 32))
    else:
        raise PskdError(
            f"model.backbone: {name} cannot be a trunk, it has no stages with maps of known strides; "
            "take a ResNet or another model of pskd.models.names(), or a ResNet of torchvision"
        )
    if len(trunk.channels) < 2:
        raise PskdError(f"model.backbone: {name} cannot be a trunk, it has one stage and a detector needs two")
    return trunk


class Detector(FasterRCNN):  # type: ignore[misc]
    """Faster R-CNN on images (C, H, W) in 0..1 that have their final size already.

    In training ``(images, targets)`` gives the losses by name; else images give boxes, labels (1..K) and scores.
    """

    def __init__(
        self,
        backbone: nn.Module,
        *,
        fixed: Sequence[nn.Module],
        padding: int,
        mean: Sequence[float],
        std: Sequence[float],
        **parts: Any,
    ) -> None:
        """``fixed``: modules whose batch statistics never change; images are padded to multiples of ``padding``."""
        super().__init__(backbone, **parts)
        # Not torchvision's resizing: it draws sizes from the global random numbers, not from (seed, epoch, sample).
        self.transform = _Normalize(1, 1, list(mean), list(std), size_divisible=padding)
        # In a tuple, or they would be registered a second time.
        self._fixed = tuple(norm for part in fixed for norm in part.modules() if isinstance(norm, nn.BatchNorm2d))

    def train(self, mode: bool = True) -> Detector:
        """Fixed batch statistics stay in evaluation mode."""
        super().train(mode)
        for norm in self._fixed:
            norm.eval()
        return self


class _Normalize(GeneralizedRCNNTransform):  # type: ignore[misc]
    """Normalises and pads, never resizes."""

    def resize(self, image: Tensor, target: Any = None) -> tuple[Tensor, Any]:
        return image, target


def faster_rcnn(
    trunk: Trunk,
    num_classes: int,
    *,
    mean: Sequence[float],
    std: Sequence[float],
    head: Literal["fpn", "c4"] = "fpn",
    frozen: int = 0,
    statistics: Literal["frozen", "trained"] = "frozen",
    finest_stride: int = 4,
    anchors: Sequence[int] = (),
    rois: int = 512,
    pyramid_width: int = 256,
    box_width: int = 1024,
    min_score: float = 0.05,
    max_detections: int = 100,
) -> Detector:
    """A detector around a trunk, whose weights it shares.

    Args:
        num_classes: K, without the background.
        mean, std: per channel of the images, for pixels in 0..1.
        head: ``"fpn"``: regions are pooled from a pyramid over the stages from ``finest_stride`` on, two linear layers
            judge them. ``"c4"``: from the last stage but one; the last stage judges them.
        frozen: so many parts of the trunk keep their weights and batch statistics: 1 the stem, 2 the first stage too.
        statistics: whether the rest of the trunk learns its batch statistics.
        anchors: sides in pixels: one for each level of the pyramid, or all those of C4; by default from the strides.
        rois: regions per image that the box head learns from.
        pyramid_width, box_width: the pyramid's channels and the size of the linear layers of ``"fpn"``.
        min_score, max_detections: what an image's detections are cut off at.
    """
    if not 0 <= frozen <= len(trunk.parts):
        raise PskdError(f"model.frozen={frozen}: take 0 to {len(trunk.parts)}, the stem and the stages of the trunk")
    for part in trunk.parts[:frozen]:
        part.requires_grad_(False)
    fixed = trunk.parts if statistics == "frozen" else trunk.parts[:frozen]
    if head == "c4":
        strides = [trunk.strides[-2]]
        backbone = nn.Sequential(*trunk.parts[:-1])
        backbone.out_channels = trunk.channels[-2]  # type: ignore[assignment]
        sizes: tuple[tuple[int, ...], ...] = (tuple(anchors) or tuple(scale * strides[0] for scale in C4_ANCHORS),)
        box_head: nn.Module = nn.Sequential(trunk.parts[-1], nn.AdaptiveAvgPool2d(1), nn.Flatten())
        predictor_width, padding = trunk.channels[-1], trunk.strides[-1]
    else:
        first = next((i for i, stride in enumerate(trunk.strides) if stride >= finest_stride), len(trunk.strides) - 1)
        strides = list(trunk.strides[first:])
        backbone = _pyramid(trunk, first, pyramid_width)
        padding = 2 * strides[-1]  # the pyramid's last level is a pooled one
        sizes = tuple((side,) for side in anchors or [FPN_ANCHOR * stride for stride in (*strides, padding)])
        if len(sizes) != len(strides) + 1:
            raise PskdError(
                f"model.anchors={list(anchors)}: give {len(strides) + 1} sides, one for each level of strides "
                f"{', '.join(map(str, (*strides, padding)))}"
            )
        box_head = TwoMLPHead(pyramid_width * POOLED[head] ** 2, box_width)
        predictor_width = box_width
    return Detector(
        backbone,
        fixed=fixed,
        padding=padding,
        mean=mean,
        std=std,
        rpn_anchor_generator=AnchorGenerator(sizes, (ASPECTS,) * len(sizes)),
        box_roi_pool=_pool(strides, POOLED[head]),
        box_head=box_head,
        box_predictor=FastRCNNPredictor(predictor_width, num_classes + 1),
        box_batch_size_per_image=rois,
        box_score_thresh=min_score,
        box_detections_per_img=max_detections,
    )


def _pyramid(trunk: Trunk, first: int, width: int) -> BackboneWithFPN:
    body = nn.Sequential(OrderedDict((f"part{number}", part) for number, part in enumerate(trunk.parts)))
    levels = range(first, len(trunk.channels))
    named = {f"part{level + 1}": str(level - first) for level in levels}
    return BackboneWithFPN(body, named, [trunk.channels[level] for level in levels], width)


def _pool(strides: Sequence[int], side: int) -> MultiScaleRoIAlign:
    """RoIAlign over maps of these strides; torchvision alone would guess them from the first batch's sizes."""
    pool = MultiScaleRoIAlign([str(level) for level in range(len(strides))], side, sampling_ratio=2)
    pool.scales = [1 / stride for stride in strides]
    pool.map_levels = initLevelMapper(int(math.log2(strides[0])), int(math.log2(strides[-1])))
    return pool


def compare_weights(source: dict[str, Tensor], detector: nn.Module, origin: str) -> list[str]:
    """Which of the classifier's weights are in the detector, which are not, and what is new; the first line sums up."""
    state = detector.state_dict()
    in_detector = {tensor.data_ptr() for tensor in state.values()}
    in_source = {tensor.data_ptr() for tensor in source.values()}
    used = [name for name, tensor in source.items() if tensor.data_ptr() in in_detector]
    left = [name for name, tensor in source.items() if tensor.data_ptr() not in in_detector]
    new = [name for name, tensor in state.items() if tensor.data_ptr() not in in_source]
    return [
        f"trunk from {origin}: {len(used)} weights taken over, {len(left)} not ({', '.join(left)}); "
        f"{len(new)} are new (log.txt lists all)",
        f"taken over: {', '.join(used)}",
        f"new: {', '.join(new)}",
    ]
