from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from pskd.workbench.models.base import add_zero_padded


@pytest.mark.parametrize("channels", [2, 5])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_add_zero_padded_equals_adding_a_padded_shortcut(channels: int, memory_format: torch.memory_format) -> None:
    torch.manual_seed(0)
    residual = torch.randn(3, 5, 4, 4, dtype=torch.float64).to(memory_format=memory_format).requires_grad_()
    shortcut = torch.randn(3, channels, 4, 4, dtype=torch.float64).to(memory_format=memory_format).requires_grad_()

    total = add_zero_padded(residual.clone(), shortcut)
    assert torch.equal(total, residual + F.pad(shortcut, (0, 0, 0, 0, 0, 5 - channels)))
    assert total.is_contiguous(memory_format=memory_format)
    assert torch.autograd.gradcheck(lambda r, s: add_zero_padded(r.clone(), s), (residual, shortcut))


def test_add_zero_padded_works_in_place() -> None:
    residual = torch.zeros(1, 3, 2, 2)
    assert add_zero_padded(residual, torch.ones(1, 2, 2, 2)).data_ptr() == residual.data_ptr()
    assert residual.sum((0, 2, 3)).tolist() == [4.0, 4.0, 0.0]
