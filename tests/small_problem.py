"""A small problem that every trainer is given, and the loop that a user would write without one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import pskd

N, D, K, EPOCHS, BATCH = 24, 5, 4, 3, 4


class Problem(NamedTuple):
    x: Tensor
    y: Tensor

    def net(self) -> nn.Module:
        """The same weights every time; no dropout, so that runs can be compared."""
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(D, 8), nn.ReLU(), nn.Linear(8, K))

    def bank(self, **settings: Any) -> pskd.PSKD:
        return pskd.PSKD(epochs=EPOCHS, memory=pskd.PredictionBank(N, K, dtype=torch.float32, **settings))


torch.manual_seed(0)
PROBLEM = Problem(torch.randn(N, D), torch.arange(N) % K)


def order(epoch: int) -> list[int]:
    """The samples of an epoch, shuffled by its number."""
    generator = torch.Generator().manual_seed(epoch)
    return torch.randperm(N, generator=generator).tolist()


def by_hand(
    method: pskd.PSKD,
    net: nn.Module,
    batches: Callable[[int], Iterable[list[int]]],
    *,
    accumulate: int = 1,
    precision: torch.dtype | None = None,
) -> list[float]:
    """The losses of plain training with SGD: what every integration has to give, too."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
    losses = []
    for epoch in range(EPOCHS):
        method.start_epoch(epoch)
        for step, samples in enumerate(batches(epoch)):
            index = torch.tensor(samples)
            with torch.autocast("cpu", precision, enabled=precision is not None):
                loss = method(net(PROBLEM.x[index]), PROBLEM.y[index], index=index, inputs=PROBLEM.x[index])
            (loss / accumulate).backward()
            losses.append(loss.item())
            if (step + 1) % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
    return losses


def in_batches(epoch: int) -> list[list[int]]:
    samples = order(epoch)
    return [samples[start : start + BATCH] for start in range(0, N, BATCH)]
