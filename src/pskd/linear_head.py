"""Logits that never exist whole: hidden states and the output weights, worked on a few positions at a time.

With a large vocabulary the (tokens x classes) logits, their softmax and their gradient are most of what a training step
holds in memory. Here only those of one part of the positions exist at a time; the gradients of hidden states and
weights are made along with the loss, so nothing is computed twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from pskd.errors import PskdError

__all__ = ["LinearHead"]

_PART_NUMEL = 2**21  # logits of one part: few enough to stay near the processor, enough rows to fill its units


class LinearHead(NamedTuple):
    """What a model returns instead of logits: ``logits = hidden @ weight.T + bias``.

    Any number of dimensions may stand before the last one of ``hidden``; each of their places is a *position*.
    """

    hidden: Tensor  # (B, ..., D)
    weight: Tensor  # (K, D)
    bias: Tensor | None = None  # (K)

    @property
    def positions(self) -> torch.Size:
        return self.hidden.shape[:-1]

    @property
    def requires_grad(self) -> bool:
        return any(tensor is not None and tensor.requires_grad for tensor in self)

    def logits(self) -> Tensor:
        """All logits, (B, K, ...): for those who need them whole."""
        return F.linear(self.hidden, self.weight, self.bias).movedim(-1, 1)

    def parts(self) -> Iterator[Part]:
        """Runs of positions, in order, small enough for their logits to exist at once."""
        count = self.positions.numel()
        rows = max(1, _PART_NUMEL // len(self.weight))
        for start in range(0, count, rows):
            yield Part(self.positions, slice(start, min(count, start + rows)))

    def part(self, part: Part) -> LinearHead:
        """The same head for the positions of one part, (n, D)."""
        return self._replace(hidden=self.hidden.reshape(-1, self.hidden.shape[-1])[part.rows])


@dataclass(frozen=True)
class Part:
    """Some of the positions (B, ...) of a head, counted through."""

    positions: torch.Size
    rows: slice

    def of(self, values: Tensor) -> Tensor:
        """What belongs to these positions, (n), of one value per position or per sample (B)."""
        if values.shape == self.positions[:1]:
            values = values.reshape(-1, *[1] * (len(self.positions) - 1)).expand(self.positions)
        if values.shape != self.positions:
            raise PskdError(
                f"a shape of {tuple(values.shape)} does not fit a head of {tuple(self.positions)} positions"
            )
        return values.reshape(-1)[self.rows]


Output: TypeAlias = Tensor | LinearHead
"""What methods take: logits (B, K, ...), or a head that makes them."""

Losses: TypeAlias = Callable[[Tensor, Part], tuple[Tensor, Tensor | None]]
"""From the logits (n, K) of a part of the positions: their losses, and their shares in a mean (None: 1), both (n)."""


def reduce_over_parts(head: LinearHead, losses: Losses, mean: bool = True) -> Tensor:
    """``sum(losses)`` over all positions, for a ``mean`` divided by ``sum(shares)``.

    The gradient flows to hidden states, weight and bias.
    """
    parts = list(head.parts())
    if len(parts) == 1:  # all logits may exist at once: autograd alone has less to do
        each, share = losses(F.linear(*head.part(parts[0])), parts[0])
        return each.sum() if not mean else each.mean() if share is None else each.sum() / share.sum()
    wanted = torch.is_grad_enabled() and head.requires_grad
    total: Tensor = _ReduceOverParts.apply(*head, losses, mean, wanted)
    return total


class _ReduceOverParts(torch.autograd.Function):
    """The gradients are ready when the loss is; the backward pass only scales them."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        losses: Losses,
        mean: bool,
        with_gradient: bool,
    ) -> Tensor:
        head = LinearHead(hidden.detach(), weight.detach(), None if bias is None else bias.detach())
        wanted = [with_gradient and needed for needed in ctx.needs_input_grad[:3]]
        gradients = [torch.zeros_like(t) if w and t is not None else None for t, w in zip(head, wanted, strict=True)]
        sums = torch.zeros(2, dtype=torch.promote_types(hidden.dtype, torch.float32), device=hidden.device)
        for part in head.parts():
            piece = head.part(part)
            logits = F.linear(*piece)
            with torch.set_grad_enabled(any(wanted)):
                each, share = losses(logits.requires_grad_(any(wanted)), part)
            count = torch.full_like(sums[0], len(each)) if share is None else share.sum()
            sums += torch.stack((each.detach().sum(), count))
            if any(wanted):
                (slope,) = torch.autograd.grad(each, logits, torch.ones_like(each))
                del logits, each
                _add_gradients(gradients, slope, piece, part)
        total, share = sums.unbind()
        if mean:
            total = total / share
            gradients = [None if g is None else g.div_(share) for g in gradients]
        ctx.save_for_backward(*gradients)
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        (outer,) = upstream
        return *(None if g is None else g * outer.to(g.dtype) for g in ctx.saved_tensors), None, None, None


def _add_gradients(gradients: list[Tensor | None], slope: Tensor, piece: LinearHead, part: Part) -> None:
    """Add what one part gives, whose loss has the gradient ``slope`` (n, K) at its logits."""
    hidden, weight, bias = gradients
    if hidden is not None:
        hidden.view(-1, hidden.shape[-1])[part.rows] = (slope @ piece.weight.to(slope.dtype)).to(hidden.dtype)
    if weight is not None and weight.dtype == slope.dtype == piece.hidden.dtype:
        weight.addmm_(slope.T, piece.hidden)
    elif weight is not None:
        weight += slope.T @ piece.hidden.to(slope.dtype)
    if bias is not None:
        bias += slope.sum(0)
