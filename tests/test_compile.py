"""A whole step, model and method, compiles as one graph without a break, and learns what the plain one learns."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import pskd

N, K = 12, 5

METHODS: dict[str, Callable[[nn.Module], pskd.Method]] = {
    "label smoothing": lambda model: pskd.LabelSmoothing(weight=[1.0, 2.0, 1.0, 0.5, 1.0]),
    "snapshot": lambda model: pskd.PSKD(3, memory=pskd.Snapshot(model)),
    "dense bank": lambda model: pskd.PSKD(3, memory=pskd.PredictionBank(N, K)),
}


def losses(make: Callable[[nn.Module], pskd.Method], backend: str | None) -> list[float]:
    """Of three epochs of three steps; with a backend, every step is one graph."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, K))
    method, optimizer = make(model), torch.optim.SGD(model.parameters(), 0.5)
    images, labels = torch.randn(N, 3), torch.arange(N) % K

    def step(x: Tensor, y: Tensor, index: Tensor) -> Tensor:
        return method(model(x), y, index=index, inputs=x)

    run = step if backend is None else torch.compile(step, fullgraph=True, backend=backend)
    seen = []
    for epoch in range(3):
        method.start_epoch(epoch)
        for index in torch.arange(N).split(4):
            loss = run(images[index], labels[index], index)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen.append(float(loss.detach()))
    return seen


@pytest.mark.parametrize("name", METHODS)
def test_a_step_is_one_graph(name: str) -> None:
    make = METHODS[name]
    torch._dynamo.reset()
    assert losses(make, "eager") == pytest.approx(losses(make, None), abs=1e-6)


@pytest.mark.slow
def test_a_step_compiles_with_inductor() -> None:
    torch._dynamo.reset()
    make = METHODS["dense bank"]
    assert losses(make, "inductor") == pytest.approx(losses(make, None), abs=1e-5)
