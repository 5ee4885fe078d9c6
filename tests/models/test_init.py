"""How the weights start: standard deviations layer by layer, over many draws."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from pskd.workbench import models
from pskd.workbench.models import StagedNet

# Small members whose every kind of layer is there; the start of a layer depends on its own shape alone.
SMALL = {
    "resnet8": {"width": 4},
    "bottleneck_resnet": {"blocks": [1, 1], "width": 4},
    "preact_resnet": {"blocks": [1, 1], "width": 4},
    "resnext": {"depth": 11, "cardinality": 2, "width": 2},
    "densenet": {"blocks": [1, 1], "growth": 4},
    "pyramidnet": {"depth": 11, "alpha": 12},
}
DRAWS = 40


def layers(model: nn.Module) -> dict[str, Tensor]:
    return {
        name: module.weight.detach()
        for name, module in model.named_modules()
        if isinstance(module, nn.Conv2d | nn.Linear)
    }


def expected_deviation(weight: Tensor, init: str) -> float:
    """By the published formulas; a grouped convolution's fan-out counts all of its channels, as PyTorch does."""
    if init == "torch" or (init == "he" and weight.ndim == 2):
        return 1 / math.sqrt(3 * weight[0].numel())  # uniform on +-1 / sqrt(fan-in)
    outputs = weight.shape[0] * weight[0, 0].numel() if weight.ndim == 4 else weight.shape[1]
    return math.sqrt(2 / outputs)


def assert_deviations(draws: list[dict[str, Tensor]], init: str) -> None:
    for name, first in draws[0].items():
        drawn = torch.stack([draw[name] for draw in draws]).double()
        expected = expected_deviation(first, init)
        # Five standard errors of a standard deviation; a uniform distribution's is smaller than a normal one's.
        assert drawn.std() == pytest.approx(expected, rel=5 / math.sqrt(2 * drawn.numel())), name
        assert abs(drawn.mean()) < 5 * expected / math.sqrt(drawn.numel()), name
        uniform = expected_deviation(first, init) == expected_deviation(first, "torch") and init != "he_fc"
        if uniform:
            assert drawn.abs().max() <= math.sqrt(3) * expected + 1e-6, name
        else:
            assert drawn.abs().max() > 2.2 * expected, name


@pytest.mark.parametrize("init", ["he", "he_fc", "torch"])
@pytest.mark.parametrize("name", SMALL)
def test_every_family_takes_every_start(name: str, init: str) -> None:
    torch.manual_seed(0)
    models_made = [models.create(name, 10, init=init, **SMALL[name]) for _ in range(DRAWS)]
    assert_deviations([layers(model) for model in models_made], init)
    if init == "he_fc":
        assert not any(model.fc.bias.any() for model in models_made)


@pytest.mark.parametrize(
    ("name", "init", "classifier"),
    [
        ("preact_resnet18", "torch", 0.0255),
        ("resnet101", "torch", 0.0128),
        ("densenet121", "torch", 0.0180),
        ("resnext29_8x64d", "he_fc", 0.0442),
        ("pyramidnet200", "he", 0.0180),
    ],
)
def test_the_published_networks_start_as_released(name: str, init: str, classifier: float) -> None:
    torch.manual_seed(0)
    model = models.create(name, 100)
    assert isinstance(model, StagedNet)
    assert_deviations([layers(model)], init)
    assert model.fc.weight.std().item() == pytest.approx(classifier, rel=0.02)
    assert bool(model.fc.bias.any()) == (init != "he_fc")


@pytest.mark.parametrize("name", SMALL)
def test_families_draw_the_numbers_that_they_always_drew(name: str) -> None:
    """PyTorch's start of every layer in turn, then He's of every convolution, from one seed."""
    torch.manual_seed(5)
    literal = models.create(name, 10, init="torch", **SMALL[name])
    for module in literal.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    torch.manual_seed(5)
    for key, value in models.create(name, 10, **SMALL[name]).state_dict().items():
        assert torch.equal(value, literal.state_dict()[key]), key
