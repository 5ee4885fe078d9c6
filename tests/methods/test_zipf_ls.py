"""Zipf's label smoothing against its equation, class by class."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from helpers import value_and_gradient
from torch import Tensor

from pskd.errors import PskdError
from pskd.methods import ZipfLS


def divergence(z: Tensor, label: int) -> Tensor:
    """The class of rank r among the others gets 1/r of the share of the first."""
    others = [c for c in range(len(z)) if c != label]
    log_p = torch.stack([z[c] for c in others]).log_softmax(0)
    ranked = sorted(range(len(others)), key=lambda place: -float(z[others[place]].detach()))
    total = sum(1 / r for r in range(1, len(z)))
    return sum(
        (1 / r / total) * (torch.tensor(1 / r / total).double().log() - log_p[place])  # type: ignore[return-value]
        for r, place in enumerate(ranked, 1)
    )


@pytest.mark.parametrize("pairs", [False, True])
def test_equals_the_equation(logits: Tensor, labels: Tensor, pairs: bool) -> None:
    weight, lam = torch.tensor([0.5, 2.0, 0.0, 1.5, 3.0]).double(), torch.linspace(0, 1, 6).double()
    second = labels.flip(0)
    if not pairs:
        labels[2], lam = -100, torch.ones(6).double()
    taken = torch.tensor([True, False, True, True, True, True])
    targets = (labels, second, lam) if pairs else labels
    found = ZipfLS(0.3, weight=weight)(logits, targets, distilled=taken)
    total, count = torch.zeros(()).double(), torch.zeros(()).double()
    for i in range(6):
        portions = [(int(labels[i]), float(lam[i])), (int(second[i]), 1 - float(lam[i]))]
        portions = [(c, portion) for c, portion in portions if c != -100 and portion]
        w = sum(weight[c] * portion for c, portion in portions)
        term = sum(portion * divergence(logits[i], c) for c, portion in portions)
        hard = sum(-weight[c] * portion * logits[i].log_softmax(0)[c] for c, portion in portions)
        total, count = total + hard + 0.3 * w * term * bool(taken[i]), count + w
    torch.testing.assert_close(value_and_gradient(found, logits), value_and_gradient(total / count, logits))


def test_what_has_no_ranks_is_refused(logits: Tensor) -> None:
    with pytest.raises(PskdError, match="needs class indices or mixed pairs, not probabilities"):
        ZipfLS()(logits, F.one_hot(torch.arange(6) % 5, 5).double())
    with pytest.raises(PskdError, match="needs 2 classes or more"):
        ZipfLS()(logits[:, :1], torch.zeros(6, dtype=torch.long))
