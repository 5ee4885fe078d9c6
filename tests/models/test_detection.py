"""Trunks of every family inside of Faster R-CNN."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pskd.errors import PskdError
from pskd.workbench import models
from pskd.workbench.models.detection import Detector, compare_weights, faster_rcnn, trunk_of

SMALL = {
    "resnet8": {"width": 4},
    "preact_resnet": {"blocks": (1, 1, 1), "width": 4},
    "bottleneck_resnet": {"blocks": (1, 1, 1), "width": 4},
    "densenet": {"blocks": (1, 1, 1), "growth": 4},
    "pyramidnet": {"depth": 11, "alpha": 12},
    "torchvision:resnet18": {},
}
SLIM = {"pyramid_width": 8, "box_width": 16, "rois": 8}


def detector(model: nn.Module, channels: int = 3, **options: object) -> Detector:
    normal = {"mean": (0.4,) * channels, "std": (0.3,) * channels}
    return faster_rcnn(trunk_of(model, "it"), 3, **{**normal, **SLIM, **options})  # type: ignore[arg-type]


def batch(channels: int, *sizes: tuple[int, int]) -> tuple[list[torch.Tensor], list[dict[str, torch.Tensor]]]:
    targets = [{"boxes": torch.tensor([[4.0, 6.0, 24.0, 30.0]]), "labels": torch.tensor([2])} for _ in sizes]
    return [torch.rand(channels, *size) for size in sizes], targets


@pytest.mark.parametrize("head", ["fpn", "c4"])
@pytest.mark.parametrize("name", SMALL)
def test_every_family_can_be_a_trunk(name: str, head: str) -> None:
    classifier = models.create(name, 5, 3, **SMALL[name])
    source = classifier.state_dict()
    made = detector(classifier, head=head).train()
    losses = made(*batch(3, (40, 56), (48, 32)))
    torch.stack(list(losses.values())).sum().backward()
    without = [name for name, weight in made.named_parameters() if weight.requires_grad and weight.grad is None]
    assert not without  # also what several processes need
    lines = compare_weights(source, made, "there")
    left = [key for key in source if key.startswith("fc.")]
    assert lines[0].startswith(f"trunk from there: {len(source) - 2} weights taken over, 2 not ({', '.join(left)});")
    for key in source:
        assert (key in lines[1].removeprefix("taken over: ").split(", ")) == (key not in left)
    assert len(lines[2].split(", ")) == len(made.state_dict()) - len(source) + 2
    (answer,) = made.eval()([torch.rand(3, 40, 50)])
    assert set(answer) == {"boxes", "labels", "scores"}


def test_the_maps_are_the_classifiers() -> None:
    classifier = models.create("preact_resnet", 5, 3, blocks=(1, 1, 1), width=4).eval()
    images = torch.rand(2, 3, 64, 64)
    made = detector(classifier, head="c4").eval()
    maps = made.backbone(images)
    assert torch.equal(made.roi_heads.box_head[0](maps), classifier.forward_features(images))
    pyramid = detector(classifier, finest_stride=1).eval()
    assert torch.equal(pyramid.backbone.body(images)["2"], classifier.forward_features(images))


@pytest.mark.parametrize("size", [(40, 50), (96, 96), (33, 128)])
def test_strides_are_exact(size: tuple[int, int]) -> None:
    """Maps of known strides, whatever the image's size: torchvision alone would guess them, and rounds its guess."""
    made = detector(models.create("resnet8", 5, 1, width=4), 1, finest_stride=2).eval()
    images, _ = made.transform([torch.rand(1, *size)])
    maps = made.backbone(images.tensors)
    strides = [images.tensors.shape[2] / level.shape[2] for level in maps.values()]
    assert strides == [2, 4, 8]
    assert made.roi_heads.box_roi_pool.scales == [1 / 2, 1 / 4]
    anchors = made.rpn.anchor_generator(images, list(maps.values()))[0]
    sides = (anchors[:, 2] - anchors[:, 0])[1::3]  # the square ones
    assert set(sides.tolist()) == {16, 32, 64}
    centres = (anchors[1::3, :2] + anchors[1::3, 2:]) / 2
    assert centres[sides == 64].unique(dim=0)[:, 0].unique().diff().unique().tolist() == [8]


def test_frozen_parts_and_statistics() -> None:
    def state_after_a_step(**options: object) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        torch.manual_seed(0)
        classifier = models.create("resnet8", 5, 1, width=4)
        made = detector(classifier, 1, **options)
        before = {name: value.clone() for name, value in classifier.state_dict().items()}
        optimizer = torch.optim.SGD([weight for weight in made.parameters() if weight.requires_grad], 0.1)
        torch.stack(list(made.train()(*batch(1, (48, 48))).values())).sum().backward()
        optimizer.step()
        return before, classifier.state_dict()

    def changed(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> set[str]:
        return {name for name in before if not torch.equal(before[name], after[name])}

    nothing_frozen = changed(*state_after_a_step(statistics="trained"))
    assert {"stem.0.weight", "stem.1.running_mean", "stages.2.0.residual.1.1.running_var"} <= nothing_frozen
    statistics = changed(*state_after_a_step(statistics="frozen"))
    assert {"stem.0.weight", "stem.1.weight"} <= statistics
    assert not any("running" in name or "tracked" in name for name in statistics)
    for settings in ("trained", "frozen"):
        some = changed(*state_after_a_step(statistics=settings, frozen=2))
        assert not any(name.startswith(("stem", "stages.0")) for name in some)
        assert any(name.startswith("stages.1") for name in some)


@pytest.mark.parametrize("name", ["torchvision:vgg11", "torchvision:mobilenet_v2"])
def test_what_cannot_be_a_trunk_is_refused_by_name(name: str) -> None:
    with torch.device("meta"), pytest.raises(PskdError, match=f"{name} cannot be a trunk"):
        trunk_of(models.create(name, 5, 3), name)


def test_wrong_settings_are_named() -> None:
    classifier = models.create("resnet8", 5, 1, width=4)
    with pytest.raises(PskdError, match=r"model\.frozen=5: take 0 to 4"):
        detector(classifier, 1, frozen=5)
    with pytest.raises(PskdError, match=r"model\.anchors=\[16\]: give 2 sides, one for each level of strides 4, 8"):
        detector(classifier, 1, anchors=[16])


def test_c4_of_the_paper_at_full_size() -> None:
    """ResNet-152 to stage 3 at stride 16, stage 4 as box head; no memory is used for the weights."""
    with torch.device("meta"):
        classifier = models.create("torchvision:resnet152", 1000, 3)
        normal = {"mean": (0.4,) * 3, "std": (0.3,) * 3}
        made = faster_rcnn(trunk_of(classifier, "it"), 20, **normal, head="c4", frozen=2, rois=128)
    assert made.backbone.out_channels == 1024
    assert made.roi_heads.box_roi_pool.scales == [1 / 16]
    assert made.roi_heads.box_roi_pool.output_size == (14, 14)
    assert made.rpn.anchor_generator.sizes == ((128, 256, 512),)
    assert made.roi_heads.box_predictor.cls_score.in_features == 2048
    assert made.roi_heads.box_predictor.cls_score.out_features == 21
    assert made.roi_heads.fg_bg_sampler.batch_size_per_image == 128
    frozen = {name for name, weight in made.named_parameters() if not weight.requires_grad}
    assert frozen == {name for name, _ in made.named_parameters() if name.startswith(("backbone.0.", "backbone.1."))}
    trunk = sum(weight.numel() for weight in classifier.parameters()) - 1000 * 2049
    new = 1024 * 1024 * 9 + 1024 + 9 * 5 * 1025 + 2049 * 21 * 5  # the RPN's two layers, the predictor's two
    assert sum(weight.numel() for weight in made.parameters()) == trunk + new


@pytest.mark.slow
def test_one_training_step_of_resnet50_c4() -> None:
    made = detector(models.create("torchvision:resnet50", 1000, 3), head="c4", frozen=2, rois=32, anchors=[32, 64, 128])
    losses = made.train()(*batch(3, (128, 192)))
    assert set(losses) == {"loss_classifier", "loss_box_reg", "loss_objectness", "loss_rpn_box_reg"}
    total = torch.stack(list(losses.values())).sum()
    total.backward()
    assert bool(torch.isfinite(total))
    weights = dict(made.named_parameters())
    assert weights["roi_heads.box_head.0.2.conv3.weight"].grad is not None
    assert weights["backbone.3.0.conv1.weight"].grad is not None
    assert weights["backbone.0.0.weight"].grad is None
