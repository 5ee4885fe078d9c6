"""A batch of six samples and five classes, in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor


@pytest.fixture
def logits() -> Tensor:
    return torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).mul(3).requires_grad_()


@pytest.fixture
def labels() -> Tensor:
    return torch.tensor([0, 4, 2, 2, 1, 3])
