"""The soft cross-entropy as one operation: ``-<q, log p>`` from the parts of a target, and its gradient.

What q is made of is said in `targets.py`; n counts the positions of a batch that have a label each.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pskd.tensors import accumulation_dtype


class Scaled(NamedTuple):
    """A dense tensor (n, K), and what each position (n) takes of it."""

    values: Tensor
    scale: Tensor


class SoftCrossEntropy(torch.autograd.Function):
    """``-<q, log p>`` and its gradient ``p * sum_j q_j - q``; with class weights q_j is q_j * w_j.

    A class whose logit is -inf is masked: q's mass on it is dropped, unless it is a label's, whose loss is infinite.
    ``masked`` false says that there is none. On a CPU p is kept for the backward pass; elsewhere the logits, which
    exist anyway.
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        log_p: Tensor,
        p: Tensor | None,
        masked: bool,
        failed: Tensor | None,
        labels: int,
        mass: Tensor | None,
        weight: Tensor | None,
        classes: Tensor | None,
        coefficients: Tensor | None,
        floor: Tensor | None,
        *dense: Tensor,
    ) -> Tensor:
        ctx.masked = masked
        ctx.save_for_backward(logits, p, mass, weight, classes, coefficients, floor, *dense)
        log_p = weighted(log_p, weight)
        loss: Tensor | None = None
        if classes is not None and coefficients is not None:
            terms = log_p.gather(1, classes) * coefficients
            if masked:
                _drop_masked(terms[:, :labels], keep_infinite=True)
                if classes.shape[1] > labels:
                    _drop_masked(terms[:, labels:])
            loss = class_sum(terms)
        for place in range(0, len(dense), 2):
            terms, scale = dense[place] * log_p, dense[place + 1]
            if masked:
                _drop_masked(terms, keep_infinite=labels == 0 and place == 0)
            loss = _plus(loss, terms.sum(1), scale)
        if floor is not None:
            every = log_p.nan_to_num(nan=0.0, neginf=0.0) if masked else log_p
            loss = _plus(loss, every.sum(1), floor)
        assert loss is not None
        # Without a prediction a loss is NaN, which was taken for masked classes above.
        return loss.neg_() if failed is None else loss.neg_().masked_fill_(failed, math.nan)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        logits, p, mass, weight, classes, coefficients, floor, *dense = ctx.saved_tensors
        outer = upstream[0][:, None]
        again = torch.is_grad_enabled()  # a gradient of this gradient will be asked for
        p = torch.softmax(logits, 1, accumulation_dtype(logits.dtype)) if p is None or again else p
        parts = list(zip(dense[::2], dense[1::2], strict=True))
        if not ctx.masked and weight is None and not again:  # what q sums to is known
            gradient = p * (outer if mass is None else outer * mass[:, None])
            for values, scale in parts:
                gradient.addcmul_(values, scale[:, None] * outer, value=-1)
            if classes is not None:
                gradient.scatter_add_(1, classes, coefficients * -outer)
            if floor is not None:
                gradient.sub_(floor[:, None] * outer)
        else:
            q = _whole_target(p.detach(), parts, classes, coefficients, floor, weight)
            if ctx.masked:
                q.masked_fill_(logits == -math.inf, 0)
            mass = q.sum(1, keepdim=True)
            gradient = (p * mass - q) * outer if again else q.addcmul_(p, mass, value=-1).mul_(-outer)
        return gradient.to(logits.dtype), *[None] * (10 + len(dense))


def _whole_target(
    like: Tensor,
    dense: list[tuple[Tensor, Tensor]],
    classes: Tensor | None,
    coefficients: Tensor | None,
    floor: Tensor | None,
    weight: Tensor | None,
) -> Tensor:
    """q (n, K), with class weights ``q_j * w_j``, in the type of another tensor."""
    q = None
    for values, scale in dense:
        terms = weighted(values, weight)
        q = terms * scale[:, None] if q is None else q.addcmul_(terms, scale[:, None])
    if floor is not None:
        even = floor[:, None] if weight is None else floor[:, None] * weight.to(floor.dtype)
        q = even.expand_as(like).clone() if q is None else q.add_(even)
    q = torch.zeros_like(like) if q is None else q
    if classes is not None and coefficients is not None:
        q.scatter_add_(1, classes, coefficients if weight is None else coefficients * weight.to(q.dtype)[classes])
    return q


def _plus(total: Tensor | None, values: Tensor, scale: Tensor) -> Tensor:
    return values * scale if total is None else torch.addcmul(total, values, scale)


def _drop_masked(terms: Tensor, keep_infinite: bool = False) -> Tensor:
    """In place: terms of masked classes, 0 * -inf or q * -inf, become 0; those of a label may stay infinite."""
    return terms.nan_to_num_(nan=0.0, posinf=math.inf, neginf=-math.inf if keep_infinite else 0.0)


def weighted(values: Tensor, weight: Tensor | None) -> Tensor:
    """Values (n, K) times the weights (K) of their classes."""
    return values if weight is None else values * weight.to(accumulation_dtype(values.dtype))


def class_sum(values: Tensor) -> Tensor:
    """Values (n, m) summed over their m classes."""
    return values[:, 0] if values.shape[1] == 1 else values.sum(1)
