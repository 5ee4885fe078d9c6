"""DisturbLabel: the labels it draws, by their statistics, and the loss of those."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pskd.errors import PskdError
from pskd.methods import DisturbLabel


def begun(rate: float = 0.3, seed: int = 0, epoch: int = 0) -> DisturbLabel:
    method = DisturbLabel(9, rate, seed=seed)
    for each in range(epoch + 1):
        method.start_epoch(each)
    return method


def drawn(method: DisturbLabel, labels: Tensor) -> Tensor:
    return method.disturbed(labels, torch.arange(len(labels)), torch.zeros(len(labels), 5), method.epoch, None)


def test_every_class_is_drawn_alike() -> None:
    """20,000 labels of class 2: a fifth of the redrawn ones is class 2 again."""
    labels = torch.full((20_000,), 2)
    share = torch.bincount(drawn(begun(), labels), minlength=5) / len(labels)
    expected = torch.tensor([0.06, 0.06, 0.76, 0.06, 0.06])
    assert (share - expected).abs().max() < 4 * (0.76 * 0.24 / 20_000) ** 0.5


def test_a_pure_function_of_seed_epoch_and_sample() -> None:
    labels = torch.zeros(1000, dtype=torch.long)
    same = drawn(begun(), labels)
    assert torch.equal(same, drawn(begun(), labels))
    assert not torch.equal(same, drawn(begun(seed=1), labels))
    assert not torch.equal(same, drawn(begun(epoch=1), labels))
    part = begun().disturbed(labels[:10], torch.arange(500, 510), torch.zeros(10, 5), 0, None)
    assert torch.equal(part, same[500:510])


def test_the_loss_is_that_of_the_drawn_labels(logits: Tensor, labels: Tensor) -> None:
    method, index = begun(rate=1.0), torch.arange(6)
    labels[1] = -100
    taken = torch.tensor([True, True, False, True, True, True])
    changed = method.disturbed(labels, index, logits, 0, taken)
    assert changed[1] == -100
    assert changed[2] == labels[2]
    assert not torch.equal(changed, labels)
    found = method(logits, labels, index=index, distilled=taken)
    torch.testing.assert_close(found, F.cross_entropy(logits, changed))
    other = method.disturbed(labels, index, logits, 0, None, which=1)
    plain = method.disturbed(labels, index, logits, 0, None)
    lam = torch.linspace(0, 1, 6).double()
    assert not torch.equal(other, plain), "the two labels of a pair are drawn on their own"
    each = [F.cross_entropy(logits, y, reduction="none") for y in (plain, other)]
    mixed = (lam * each[0] + (1 - lam) * each[1]).sum() / 5
    torch.testing.assert_close(method(logits, (labels, labels, lam), index=index), mixed)
    with pytest.raises(PskdError, match="index is missing"):
        method(logits, labels)
