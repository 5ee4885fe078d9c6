"""Self-adaptive training against its equations, sample by sample."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from helpers import value_and_gradient
from torch import Tensor

from pskd import PredictionBank
from pskd.methods import SAT


def bank() -> PredictionBank:
    return PredictionBank(6, 5, dtype=torch.float64, max_age=None)


@pytest.mark.parametrize("pairs", [False, True])
def test_three_epochs_by_hand(logits: Tensor, labels: Tensor, pairs: bool) -> None:
    """The first is a plain one; then t moves from the label on, but not of the sample that is left out."""
    method, index = SAT(3, 0.7, warmup=0.2, memory=bank()), torch.arange(6)
    taken = torch.tensor([True, True, False, True, True, True])
    rows = F.one_hot(labels, 5).double()
    targets = (labels, labels.flip(0), torch.ones(6, dtype=torch.float64)) if pairs else labels
    for epoch, z in enumerate((logits, logits.roll(1, 0), logits.flip(0))):
        method.start_epoch(epoch)
        found = method(z, targets, index=index, distilled=taken)
        if epoch == 0:
            expected = F.cross_entropy(z, labels)
        else:
            total, weights = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
            for i in range(6):
                p = z[i].softmax(0)
                if taken[i]:
                    rows[i] = 0.7 * rows[i] + 0.3 * p.detach()
                w = rows[i].max() if taken[i] else torch.tensor(1.0, dtype=torch.float64)
                total, weights = total - w * (rows[i].clone() * p.log()).sum(), weights + w
            expected = total / weights
        torch.testing.assert_close(value_and_gradient(found, logits), value_and_gradient(expected, logits))
    torch.testing.assert_close(method.memory.probabilities(index[taken]), rows[taken])


def test_each_and_their_sum(logits: Tensor, labels: Tensor) -> None:
    found = {}
    for reduction in ("none", "sum", "mean"):
        method = SAT(1, warmup=0.0, memory=bank(), reduction=reduction, weight=[1.0, 2.0, 3.0, 4.0, 5.0])
        method.start_epoch(0)
        found[reduction] = method(logits, labels, index=torch.arange(6))
    mean = 0.9 * F.one_hot(labels, 5) + 0.1 * logits.softmax(1)
    sure, weight = mean.amax(1), torch.arange(1.0, 6).double()
    each = sure * -(weight * mean.detach() * logits.log_softmax(1)).sum(1)
    torch.testing.assert_close(found["none"], each)
    torch.testing.assert_close(found["sum"], each.sum())
    torch.testing.assert_close(found["mean"], each.sum() / (sure * weight[labels]).sum())
