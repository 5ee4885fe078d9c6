"""A whole step, model and method, compiles once as one graph without a break, and learns what the plain one learns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter

import pskd
from pskd.errors import PskdError

N, K, EPOCHS = 12, 5, 14


def ps_kd(alpha: Any = 0.8, **bank: Any) -> pskd.PSKD:
    return pskd.PSKD(EPOCHS, alpha, memory=pskd.PredictionBank(N, K, **bank))


METHODS: dict[str, Callable[[nn.Module], pskd.Method]] = {
    "label smoothing": lambda model: pskd.LabelSmoothing(weight=[1.0, 2.0, 1.0, 0.5, 1.0]),
    "bank": lambda model: ps_kd(),
    "top-k": lambda model: ps_kd(form="topk", k=2),
    "momentum": lambda model: ps_kd(momentum=0.5),
    "auto": lambda model: ps_kd("auto"),
    "snapshot": lambda model: pskd.PSKD(EPOCHS, memory=pskd.Snapshot(model)),
    "mean": lambda model: pskd.PSKD(EPOCHS, memory=pskd.Snapshot(model, ema=0.9)),
}


def weights(make: Callable[[nn.Module], pskd.Method], backend: Any) -> Tensor:
    """After fourteen epochs of three steps; with a backend, every step is one graph."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, K))
    method, optimizer = make(model), torch.optim.SGD(model.parameters(), 0.5)
    images, labels = torch.randn(N, 3), torch.arange(N) % K

    def step(x: Tensor, y: Tensor, index: Tensor) -> Tensor:
        return method(model(x), y, index=index, inputs=x)

    run = step if backend is None else torch.compile(step, fullgraph=True, backend=backend)
    for epoch in range(EPOCHS):
        method.start_epoch(epoch)
        for index in torch.randperm(N).split(4):
            loss = run(images[index], labels[index], index)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    method.settle()
    return nn.utils.parameters_to_vector(model.parameters()).detach()


@pytest.mark.parametrize("name", METHODS)
def test_a_step_is_one_graph_and_compiled_once(name: str) -> None:
    """Twice with a memory: there is no past in the first epoch."""
    counter = CompileCounter()
    torch.testing.assert_close(weights(METHODS[name], counter), weights(METHODS[name], None), rtol=0, atol=1e-6)
    assert 1 <= counter.frame_count <= 2


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_a_step_compiles_with_inductor(name: str) -> None:
    make = METHODS[name]
    torch.testing.assert_close(weights(make, "inductor"), weights(make, None), rtol=0, atol=1e-4)


def test_what_was_wrong_in_a_graph_is_said_at_the_end_of_the_epoch() -> None:
    torch._dynamo.reset()
    method = ps_kd()
    step = torch.compile(lambda z, y, i: method(z, y, index=i), fullgraph=True, backend="eager")
    logits, labels, index = torch.zeros(4, K, requires_grad=True), torch.arange(4), torch.arange(4)
    for wrong in ((logits, labels + 2, index), (logits, labels, index + N - 2), (logits / 0, labels, index)):
        method = ps_kd()
        method.start_epoch(0)
        step(*wrong)
        with pytest.raises(PskdError, match=r"values of compiled steps were wrong .*: run a few steps without torch"):
            method.start_epoch(1)
        method.start_epoch(1)  # it is said once
