"""ShakeDrop: Yamada et al., ShakeDrop Regularization for Deep Residual Learning (IEEE Access 2019)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class _Scale(torch.autograd.Function):
    """Times one factor on the way forward, times another on the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forth: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        return x * forth

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (back,) = ctx.saved_tensors
        return grad * back, None, None


class ShakeDrop(nn.Module):
    """Disturbs a residual branch (B, C, H, W) in training.

    Each forward draws one gate for the whole batch. Open, with probability ``open_probability``, it changes nothing.
    Closed, it scales every image by its own draw from U(-1, 1), and that image's gradient by an independent one from
    U(0, 1). Evaluation scales by the expected factor, which is ``open_probability``.
    """

    def __init__(self, open_probability: float) -> None:
        super().__init__()
        self.open_probability = open_probability

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x * self.open_probability
        # Drawn and chosen on the device, without a branch: no accelerator waits and the graph compiles whole.
        is_open = torch.rand((), device=x.device) < self.open_probability
        forth, back = torch.rand(2, len(x), 1, 1, 1, device=x.device)
        forth = torch.where(is_open, 1.0, 2 * forth - 1)
        back = torch.where(is_open, 1.0, back)
        shaken: Tensor = _Scale.apply(x, forth.to(x.dtype), back.to(x.dtype))
        return shaken

    def extra_repr(self) -> str:
        return f"open_probability={self.open_probability:.3f}"
