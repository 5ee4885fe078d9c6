"""Correctness ranking against its equation, pair by pair, and the history it keeps."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from banks import known
from helpers import value_and_gradient
from torch import Tensor

from pskd import PredictionBank
from pskd.errors import PskdError
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
    method = CRL(4, lam=0.5, memory=PredictionBank(6, 3, dtype=torch.float64, max_age=None))
    history: list[list[bool]] = [[] for _ in range(6)]
    for epoch in range(4):
        z = logits.roll(epoch, 0) + 4 * F.one_hot(labels, 5) * (torch.arange(6) % (epoch + 2) == 0)[:, None]
        taken = [not (epoch == 1 and i == 2) for i in range(6)]
        method.start_epoch(epoch)
        found = method(z, labels, index=torch.arange(6), distilled=torch.tensor(taken))
        wanted = expected_loss(z, labels, history, taken)
        torch.testing.assert_close(value_and_gradient(found, logits), value_and_gradient(wanted, logits))
        for i, right in enumerate((z.argmax(1) == labels).tolist()):
            history[i] += [right] * taken[i]
    assert len({tuple(each) for each in history}) > 2


def test_mixed_labels_are_not_ranked(logits: Tensor, labels: Tensor) -> None:
    method = CRL(2, memory=PredictionBank(6, 3))
    method.start_epoch(0)
    pair = (labels, labels.flip(0), torch.full((6,), 0.4, dtype=torch.float64))
    found = method.loss(logits, pair, index=torch.arange(6))
    assert found.parts["ranking"] == 0
    assert known(method.memory, torch.arange(6)) == [False] * 6


def released(z: Tensor, counts: Tensor, most: int) -> Tensor:
    """The ranking of the authors' code for counts of right epochs, of which the smallest is 0."""
    k, c = z.softmax(1).max(1).values, counts.double() / most
    ahead = (c > c.roll(-1)).double() - (c < c.roll(-1)).double()
    margin = (c - c.roll(-1)).abs()
    other = k.roll(-1) + margin / torch.where(ahead == 0, 1.0, ahead)
    return F.margin_ranking_loss(k, other, ahead)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_twelve_epochs_of_the_released_history(dtype: torch.dtype) -> None:
    """Many samples are right equally often, in other epochs: they are not ranked. Sample 0 is never right."""
    n, draw = 24, torch.Generator().manual_seed(7)
    method = CRL(12, memory=PredictionBank(n, 3, dtype=dtype, max_age=None))
    labels, counts, most, index = torch.arange(n) % 5, torch.zeros(n, dtype=torch.long), 1, torch.arange(n)
    for epoch in range(12):
        z = torch.randn(n, 5, dtype=torch.float64, generator=draw) + 2 * F.one_hot(labels, 5)
        z[0] = -z[0] - 20 * F.one_hot(labels[0], 5)
        z.requires_grad_()
        method.start_epoch(epoch)
        for batch in torch.randperm(n, generator=draw).split(8):
            found = method.loss(z[batch], labels[batch], index=index[batch])
            wanted = F.cross_entropy(z[batch], labels[batch]) + released(z[batch], counts[batch], most)
            expected = value_and_gradient(wanted, z)
            torch.testing.assert_close(value_and_gradient(found.total, z), expected, rtol=0, atol=1e-14)
        counts += z.argmax(1) == labels
        most = max(1, epoch + 1)
    assert counts[0] == 0
    assert len(counts.unique()) < n - 12  # so that many are equal


def test_equal_histories_are_not_ranked_in_whatever_order_they_came() -> None:
    """Right in a third of 9, 6 or 12 epochs, and left out of the others."""
    seen = [
        "100100100.........",
        "000000111.........",
        "111.....000000....",
        "0...1...0...0.1.0.",
        "001.001.001.001...",
    ]
    n = len(seen)
    method = CRL(19, memory=PredictionBank(n, 3, dtype=torch.float32))
    labels, index = torch.zeros(n, dtype=torch.long), torch.arange(n)
    for epoch in range(18):
        method.start_epoch(epoch)
        right = torch.tensor([marks[epoch] == "1" for marks in seen])
        taken = torch.tensor([marks[epoch] != "." for marks in seen])
        z = torch.stack((right.float(), 0.5 * torch.ones(n)), 1).requires_grad_()
        method(z, labels, index=index, distilled=taken)
    method.start_epoch(18)
    z = torch.randn(n, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(8)).requires_grad_()
    assert method.loss(z, labels, index=index).parts["ranking"] == 0


def test_a_bank_of_two_classes_is_refused() -> None:
    with pytest.raises(PskdError, match=r"memory has 2 classes, but CRL counts in 3: PredictionBank\(N, 3\)"):
        CRL(2, memory=PredictionBank(6, 2))
