"""Facts of the published networks, each as a number."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import nn

from pskd.workbench import models
from pskd.workbench.models.families.shakedrop import ShakeDrop


@cache
def made(name: str, num_classes: int = 100, shakedrop: bool = False) -> nn.Module:
    with torch.device("meta"):
        return models.create(name, num_classes, **({"shakedrop": True} if shakedrop else {}))


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def convolutions(model: nn.Module, size: int | None = None) -> list[nn.Conv2d]:
    found = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    return [conv for conv in found if size is None or conv.kernel_size == (size, size)]


@pytest.mark.parametrize(
    ("name", "num_classes", "expected"),
    [
        ("resnet20", 10, 269_722),
        ("resnet56", 10, 853_018),
        ("preact_resnet18", 100, 11_217_444),
        ("resnet101", 100, 42_697_380),
        ("densenet121", 100, 7_048_548),
        ("resnext29_8x64d", 100, 34_518_948),
        ("pyramidnet200", 100, 26_844_952),
        ("torchvision:resnet152", 1000, 60_192_808),
    ],
)
def test_parameters(name: str, num_classes: int, expected: int) -> None:
    assert parameters(made(name, num_classes)) == expected


@pytest.mark.parametrize(
    ("name", "depth", "shortcuts", "stem", "stages", "blocks"),
    [
        ("preact_resnet18", 18, 3, 64, (64, 128, 256, 512), (2, 2, 2, 2)),
        ("resnet101", 101, 4, 64, (256, 512, 1024, 2048), (3, 4, 23, 3)),
        ("densenet121", 121, 0, 64, (256, 512, 1024, 1024), (6, 12, 24, 16)),
        ("resnext29_8x64d", 29, 3, 64, (256, 512, 1024), (3, 3, 3)),
        ("pyramidnet200", 200, 0, 16, (4 * 96, 4 * 176, 4 * 256), (22, 22, 22)),
    ],
)
def test_depth_widths_and_strides(
    name: str, depth: int, shortcuts: int, stem: int, stages: tuple[int, ...], blocks: tuple[int, ...]
) -> None:
    """The depth counts the convolutions on the longest path, without those of shortcuts, and the classifier."""
    model = made(name)
    assert len(convolutions(model)) - shortcuts + 1 == depth
    first = convolutions(model)[0]
    assert (first.out_channels, first.kernel_size, first.stride) == (stem, (3, 3), (1, 1))
    assert (model.stage_channels, model.stage_strides) == (stages, (1, 2, 4, 8)[: len(stages)])
    assert model.fc.in_features == stages[-1]
    with_3x3 = [[block for block in stage if convolutions(block, 3)] for stage in model.stages]
    assert tuple(map(len, with_3x3)) == blocks


def test_the_growth_and_the_bottleneck_of_densenet() -> None:
    layers = convolutions(made("densenet121"), 3)[1:]
    assert {(conv.in_channels, conv.out_channels) for conv in layers} == {(128, 32)}


def test_the_groups_of_resnext() -> None:
    grouped = convolutions(made("resnext29_8x64d"), 3)[1:]
    assert {conv.groups for conv in grouped} == {8}
    assert [conv.out_channels // 8 for conv in grouped] == [64] * 3 + [128] * 3 + [256] * 3


def test_the_widths_of_pyramidnet() -> None:
    inner = [conv.out_channels for conv in convolutions(made("pyramidnet200"), 3)[1:]]
    assert inner == [round(16 + 240 * block / 66) for block in range(1, 67)]
    assert (inner[0], inner[21], inner[43], inner[65]) == (20, 96, 176, 256)


def test_the_gates_of_shakedrop() -> None:
    def gates_of(model: nn.Module) -> list[float]:
        return [module.open_probability for module in model.modules() if isinstance(module, ShakeDrop)]

    model, plain = made("pyramidnet200", shakedrop=True), made("pyramidnet200")
    gates = gates_of(model)
    assert not gates_of(plain)
    assert gates == pytest.approx([1 - block / (2 * 66) for block in range(1, 67)])
    assert (gates[0], gates[32], gates[65]) == pytest.approx((0.99242, 0.75, 0.5), abs=5e-6)
    assert parameters(model) == parameters(plain)
