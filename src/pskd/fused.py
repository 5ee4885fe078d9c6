"""The soft cross-entropy as one operation: ``-<q, log p>`` from the parts of a target, and its gradient.

What q is made of, and why, is said in `targets.py`; a position is one of the (B, d1, ...) places that have a label.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pskd.tensors import accumulation_dtype


class Scaled(NamedTuple):
    """A dense tensor (B, K, ...), and what each position (B, ...) takes of it."""

    values: Tensor
    scale: Tensor


class SoftCrossEntropy(torch.autograd.Function):
    """``-<q, log p>`` and its gradient ``sum_j q_j * p - q``, from the parts of q; with class weights q_j is q_j * w_j.

    Only the logits, which exist anyway, wait for the backward pass; and on a CPU their `log_likelihood`, where somebody
    has made it: then p takes half the time. Sums go over the classes that are not masked.
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        log_p: Tensor | None,
        weight: Tensor | None,
        labels: int,
        classes: Tensor | None,
        coefficients: Tensor | None,
        floor: Tensor | None,
        *dense: Tensor,
    ) -> Tensor:
        on_cpu = logits.device.type == "cpu" and not torch.compiler.is_compiling()
        ctx.save_for_backward(logits, log_p if on_cpu else None, weight, classes, coefficients, floor, *dense)
        log_p = log_likelihood(logits) if log_p is None else log_p
        pairs = _pairs(dense)
        if on_cpu:
            # A class with log p = -inf leaves its trace in the loss; to look for it there saves a pass over (B, K).
            loss = -_inner_product(weighted(log_p, weight), classes, coefficients, floor, pairs)
            ctx.masks = not math.isfinite(loss.sum()) and bool(_masked(logits).any())
            if not ctx.masks:
                return loss
        else:
            ctx.masks = len(pairs) > 0 or floor is not None
            if not ctx.masks and classes is not None and coefficients is not None:
                terms = weighted(log_p, weight).gather(1, classes) * coefficients
                return -class_sum(terms.masked_fill(coefficients == 0, 0))
        masked = _masked(logits)
        log_p = weighted(log_p.masked_fill(masked, 0), weight)
        loss = -_inner_product(log_p, classes, coefficients, floor, pairs)
        return loss.masked_fill(_label_mass(masked, labels, classes, coefficients, pairs) > 0, math.inf)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        logits, log_p, weight, classes, coefficients, floor, *dense = ctx.saved_tensors
        (outer,) = upstream
        again = torch.is_grad_enabled()  # a gradient of this gradient will be asked for
        p = torch.softmax(logits, 1, accumulation_dtype(logits.dtype)) if log_p is None or again else log_p.exp()
        pairs = _pairs(dense)
        masked = _masked(logits) if ctx.masks else None
        if masked is not None:
            pairs = [Scaled(values.masked_fill(masked, 0), scale) for values, scale in pairs]
        mass = [scale * weighted(values, weight).sum(1, dtype=p.dtype) for values, scale in pairs]
        if classes is not None:
            if weight is not None:
                coefficients = coefficients * weight.to(p.dtype)[classes]
            if masked is not None:
                coefficients = coefficients.masked_fill(masked.gather(1, classes), 0)
            mass.append(class_sum(coefficients))
        if floor is not None and masked is not None:
            mass.append(floor * weighted((~masked).to(p.dtype), weight).sum(1))
        elif floor is not None:
            mass.append(floor * (p.shape[1] if weight is None else weight.sum()))
        outer = outer[:, None]
        total = reduce(torch.add, mass)[:, None] * outer
        gradient = p * total if again else p.mul_(total)
        for values, scale in pairs:
            gradient.addcmul_(weighted(values.to(p.dtype), weight), scale[:, None] * outer, value=-1)
        if classes is not None:
            gradient.scatter_add_(1, classes, coefficients * -outer)
        if floor is not None:
            gradient -= weighted(floor[:, None] * outer, weight)
        if masked is not None:
            gradient = gradient.masked_fill(masked, 0)
        return gradient.to(logits.dtype), *[None] * (6 + len(dense))


def log_likelihood(logits: Tensor) -> Tensor:
    """log softmax (B, K, ...) in the type that sums are made in; nothing flows back through it."""
    return torch.log_softmax(logits.detach(), 1, accumulation_dtype(logits.dtype))


def _inner_product(
    log_p: Tensor, classes: Tensor | None, coefficients: Tensor | None, floor: Tensor | None, pairs: list[Scaled]
) -> Tensor:
    """``<q, log p>`` of every position, (B, d1, ...)."""
    inner = [scale * (values * log_p).sum(1, dtype=log_p.dtype) for values, scale in pairs]
    if classes is not None and coefficients is not None:
        inner.append(class_sum(log_p.gather(1, classes) * coefficients))
    if floor is not None:
        inner.append(floor * log_p.sum(1))
    return reduce(torch.add, inner)


def _masked(logits: Tensor) -> Tensor:
    """True (B, K, ...) where a logit is -inf."""
    return logits == -math.inf


def _label_mass(
    at: Tensor, labels: int, classes: Tensor | None, coefficients: Tensor | None, pairs: list[Scaled]
) -> Tensor:
    """The labels' part of q at the classes where ``at`` (B, K, ...) is true, (B, d1, ...)."""
    if labels and classes is not None and coefficients is not None:
        return class_sum(coefficients[:, :labels] * at.gather(1, classes[:, :labels]))
    return pairs[0].scale * (pairs[0].values * at).sum(1)


def _pairs(dense: Sequence[Tensor]) -> list[Scaled]:
    """The dense parts of a target, which autograd takes as one tensor after the other."""
    return [Scaled(values, scale) for values, scale in zip(dense[::2], dense[1::2], strict=True)]


def weighted(values: Tensor, weight: Tensor | None) -> Tensor:
    """Values (B, K, ...) times the weights (K) of their classes."""
    if weight is None:
        return values
    return values * weight.to(accumulation_dtype(values.dtype)).reshape(-1, *[1] * (values.ndim - 2))


def class_sum(values: Tensor) -> Tensor:
    """Values (B, m, ...) summed over their m classes."""
    return values[:, 0] if values.shape[1] == 1 else values.sum(1)
