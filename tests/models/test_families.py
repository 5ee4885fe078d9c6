"""What holds for every family, shown on its small members."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from pskd.workbench import models
from pskd.workbench.models import StagedNet

SMALL = {
    "resnet8": {"width": 8},
    "bottleneck_resnet": {"blocks": [1, 2], "width": 8},
    "preact_resnet": {"blocks": [2, 1], "width": 8},
    "resnext": {"depth": 11, "cardinality": 2, "width": 4},
    "densenet": {"blocks": [2, 2, 2, 2], "growth": 4},
    "pyramidnet20": {},
    "pyramidnet": {"depth": 11, "alpha": 48, "shakedrop": True},
}
families = pytest.mark.parametrize("name", SMALL)


def small(name: str, num_classes: int = 4, in_channels: int = 3, seed: int = 0) -> StagedNet:
    torch.manual_seed(seed)
    model = models.create(name, num_classes, in_channels, **SMALL[name])
    assert isinstance(model, StagedNet)
    return model


def toy_batch(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """16 noisy 8x8 images of 4 classes: each class is bright in its own quadrant."""
    torch.manual_seed(1)
    labels = torch.arange(16) % 4
    quadrants = F.interpolate(torch.eye(4).view(4, 1, 2, 2), scale_factor=4)
    return (quadrants[labels] + 0.5 * torch.randn(16, 3, 8, 8)).to(dtype), labels


@families
@pytest.mark.parametrize(("channels", "side"), [(3, 32), (1, 28), (1, 8)])
def test_logits_and_stages_have_the_promised_shapes(name: str, channels: int, side: int) -> None:
    model = small(name, num_classes=10, in_channels=channels)
    images = torch.randn(2, channels, side, side).to(memory_format=torch.channels_last)
    x = model.stem(images)
    for stage, out_channels, stride in zip(model.stages, model.stage_channels, model.stage_strides, strict=True):
        x = stage(x)
        assert x.shape == (2, out_channels, side // stride, side // stride)
        assert x.is_contiguous(memory_format=torch.channels_last)
    assert model.forward_features(images).shape == x.shape
    assert model(images).shape == (2, 10)
    assert model.fc.in_features == model.stage_channels[-1]


@families
def test_gradients_stay_channels_last(name: str) -> None:
    model = small(name).to(memory_format=torch.channels_last)
    images = toy_batch()[0].to(memory_format=torch.channels_last).requires_grad_()
    seen = []
    for stage in model.stages:
        stage.register_full_backward_pre_hook(lambda _, grads: seen.append(grads[0]))
    model(images).square().sum().backward()
    assert len(seen) == len(model.stages)
    assert all(grad.is_contiguous(memory_format=torch.channels_last) for grad in [*seen[1:], images.grad])


@families
def test_a_few_steps_of_sgd_learn_a_toy_problem(name: str) -> None:
    model = small(name).to(memory_format=torch.channels_last)
    images, labels = toy_batch()
    images = images.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    losses = []
    for _ in range(30):
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert statistics.median(losses[-10:]) < 0.75 * losses[0]  # a median, since ShakeDrop makes single losses jump


@families
def test_a_seed_makes_the_same_model_and_another_a_different_one(name: str) -> None:
    same, again, other = small(name), small(name), small(name, seed=1)
    for key, value in same.state_dict().items():
        assert torch.equal(value, again.state_dict()[key])
    assert not torch.equal(
        same.stem.state_dict()[key := next(iter(same.stem.state_dict()))], other.stem.state_dict()[key]
    )


@families
def test_copies_and_loaded_states_compute_the_same(name: str) -> None:
    model, images = small(name), toy_batch()[0]
    model(images)  # moves the running statistics, so that they too must be carried over
    loaded = small(name, seed=1)
    loaded.load_state_dict(model.state_dict())
    copied = copy.deepcopy(model)
    expected = model.eval()(images)
    for twin in (loaded, copied):
        assert torch.equal(twin.eval()(images), expected)
    with torch.no_grad():
        copied.fc.weight.zero_()
    assert torch.equal(model(images), expected)


def loss_and_gradient(
    model: StagedNet, run: Callable[[Tensor], Tensor], images: Tensor, labels: Tensor
) -> list[Tensor]:
    torch.manual_seed(2)  # of ShakeDrop
    loss = F.cross_entropy(run(images), labels)
    return [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))]


@families
def test_the_memory_format_does_not_change_the_result(name: str) -> None:
    images, labels = toy_batch(torch.float64)
    model = small(name).double()
    expected = loss_and_gradient(model, model, images, labels)
    model.to(memory_format=torch.channels_last)
    images = images.to(memory_format=torch.channels_last)
    torch.testing.assert_close(loss_and_gradient(model, model, images, labels), expected)


def test_the_custom_gradients_compile_into_one_graph() -> None:
    images, labels = toy_batch(torch.float64)
    model = small("pyramidnet").double()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    expected = loss_and_gradient(model, model, images, labels)
    torch.testing.assert_close(loss_and_gradient(model, compiled, images, labels), expected)


@families
def test_autocast_computes_in_bfloat16(name: str) -> None:
    model, (images, labels) = small(name), toy_batch()
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(images)
        features = model.forward_features(images)
    F.cross_entropy(logits.float(), labels).backward()
    assert logits.dtype == features.dtype == torch.bfloat16
    assert all(
        p.grad is not None and p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in model.parameters()
    )
