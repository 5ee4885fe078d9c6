"""Early-learning regularisation against the released arithmetic of its target, over twelve epochs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from helpers import value_and_gradient
from torch import Tensor

from pskd import PredictionBank
from pskd.methods import ELR


@pytest.mark.parametrize(("beta", "lam"), [(0.7, 3.0), (0.9, 7.0)])
def test_twelve_epochs_of_the_released_target(labels: Tensor, beta: float, lam: float) -> None:
    """Constants of CIFAR-10 and CIFAR-100; some predictions are so sure that they are clamped."""
    method = ELR(12, beta, lam, memory=PredictionBank(6, 5, dtype=torch.float64))
    target, draw = torch.zeros(6, 5, dtype=torch.float64), torch.Generator().manual_seed(0)
    for epoch in range(12):
        z = torch.randn(6, 5, dtype=torch.float64, generator=draw).mul(6).requires_grad_()
        method.start_epoch(epoch)
        found = method(z, labels, index=torch.arange(6))
        p = z.softmax(1).clamp(1e-4, 1 - 1e-4)
        target = beta * target + (1 - beta) * p.detach() / p.detach().sum(1, keepdim=True)
        wanted = F.cross_entropy(z, labels) + lam * (1 - (target * p).sum(1)).log().mean()
        torch.testing.assert_close(value_and_gradient(found, z), value_and_gradient(wanted, z), rtol=0, atol=1e-12)
