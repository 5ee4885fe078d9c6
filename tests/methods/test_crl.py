"""Correctness ranking against its equation, pair by pair, and the history it keeps."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from helpers import value_and_gradient
from torch import Tensor

from pskd import PredictionBank
from pskd.methods import CRL


def expected_loss(z: Tensor, labels: Tensor, history: list[list[bool]], taken: list[bool]) -> Tensor:
    c = [sum(epochs) / len(epochs) if epochs else 0.0 for epochs in history]
    k = z.softmax(1).max(1).values
    total = torch.zeros((), dtype=torch.float64)
    for i in range(len(labels)):
        j = (i + 1) % len(labels)
        sign = (c[i] > c[j]) - (c[i] < c[j])
        if history[i] and history[j] and taken[i] and taken[j]:
            total = total + max(abs(c[i] - c[j]) - sign * (k[i] - k[j]), 0 * k[i])
    return F.cross_entropy(z, labels) + 0.5 * total / len(labels)


def test_the_loss_and_its_history(logits: Tensor, labels: Tensor) -> None:
    """Sample 2 is left out in the second epoch: it is not ranked then, and its history stays."""
    method = CRL(4, lam=0.5, memory=PredictionBank(6, 2, dtype=torch.float64, max_age=None))
    history: list[list[bool]] = [[] for _ in range(6)]
    for epoch in range(4):
        z = logits.roll(epoch, 0) + 4 * F.one_hot(labels, 5) * (torch.arange(6) % (epoch + 2) == 0)[:, None]
        taken = [not (epoch == 1 and i == 2) for i in range(6)]
        method.start_epoch(epoch)
        found = method(z, labels, index=torch.arange(6), distilled=torch.tensor(taken))
        wanted = expected_loss(z, labels, history, taken)
        torch.testing.assert_close(value_and_gradient(found, logits), value_and_gradient(wanted, logits))
        for i, right in enumerate((z.argmax(1) == labels).tolist()):
            # The mean is over all epochs: one that was missed counts as the one before it.
            history[i].append(right if taken[i] else history[i][-1])
    assert len({tuple(each) for each in history}) > 2


def test_mixed_labels_are_not_ranked(logits: Tensor, labels: Tensor) -> None:
    method = CRL(2, memory=PredictionBank(6, 2))
    method.start_epoch(0)
    pair = (labels, labels.flip(0), torch.full((6,), 0.4, dtype=torch.float64))
    found = method.loss(logits, pair, index=torch.arange(6))
    assert found.parts["ranking"] == 0
    known = method.memory.recall(torch.arange(6)).known
    assert known is not None
    assert not known.any()
