"""The target that a batch is trained on, how it is softened (Eq. 6 of the paper), and its cross-entropy.

A target is kept in parts (a few classes with a coefficient each, dense tensors that exist anyway, an even share for
every class), so the (positions x classes) target is never built. A *position* is a place that has a label; n counts
those of a batch.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import torch
from torch import Tensor

from pskd.tensors import accumulation_dtype

Reduction: TypeAlias = Literal["mean", "sum", "none"]
REDUCTIONS = get_args(Reduction)
IGNORE_INDEX = -100  # a position with this label takes no part in any method

Targets: TypeAlias = Tensor | tuple[Tensor, Tensor, Tensor | float]
"""Class indices (B, ...), class probabilities (B, K, ...), or a mixed pair ``(a, b, lam)``: lam * a + (1 - lam) * b."""


def spread(value: float | Tensor, like: Tensor) -> Tensor:
    """A number, 0-dim or (n) as (n), like another tensor."""
    return value.to(like).expand(like.shape) if isinstance(value, Tensor) else torch.full_like(like, value)


def _sum(values: Tensor) -> Tensor:
    """Values (n, k) summed over their classes, at least in float32."""
    return values.sum(1, dtype=accumulation_dtype(values.dtype))


class Scaled(NamedTuple):
    """A dense tensor (n, K), and what each position (n) takes of it."""

    values: Tensor
    scale: Tensor


class Past(NamedTuple):
    """Past predictions of n positions: dense (n, K), or the top k classes and their values, both (n, k).

    What the top k leave of the mass is spread evenly over the other classes. ``known`` (n) is false where there is no
    past prediction; None means that all are known. Values whose sum ``mass`` (n) is more than 1 are divided by it;
    None means that they are probabilities.
    """

    values: Tensor
    classes: Tensor | None = None
    known: Tensor | None = None
    mass: Tensor | None = None
    place: Any = None  # where a memory found them: what it needs to write there

    def trust(self, alpha: float | Tensor) -> Tensor:
        """alpha where a past is known and 0 elsewhere, (n)."""
        if self.known is None:
            return spread(alpha, self.values[:, 0])
        return alpha * self.known

    def probabilities(self, num_classes: int) -> Tensor:
        """All of it, (n, K)."""
        mass = _sum(self.values) if self.mass is None and self.classes is not None else self.mass
        values = self.values if mass is None else self.values / mass.clamp_min(1)[:, None]
        if self.classes is None or mass is None:
            return values
        rest = (1 - mass).clamp_min(0) / max(1, num_classes - values.shape[1])
        return rest[:, None].repeat(1, num_classes).scatter_(1, self.classes, values)

    def normalised(self) -> Past:
        """The same, whose values are probabilities."""
        if self.mass is None:
            return self
        return Past(self.values / self.mass.clamp_min(1)[:, None], self.classes, self.known)

    def averaged_with(self, p: Tensor, momentum: float) -> Tensor:
        """``momentum * past + (1 - momentum) * p`` (n, K); where no past is known, ``p`` as it is."""
        past = self.probabilities(p.shape[1]).to(p.dtype)
        return torch.lerp(p, past, momentum if self.known is None else momentum * self.known[:, None].to(p.dtype))


class Target(NamedTuple):
    """``q_j = sum_m coefficients_m [classes_m = j] + floor + sum_d scale_d * values_d,j`` at every position.

    The labels come first: as the first ``labels`` of the m classes, or as the first of the dense parts. ``mass`` is
    what the labels sum to, 0 where they are ignored; None means 1 everywhere.
    """

    num_classes: int
    labels: int  # how many of the m classes are labels; 0: they are class probabilities
    mass: Tensor | None = None  # (n)
    classes: Tensor | None = None  # (n, m) int64
    coefficients: Tensor | None = None  # (n, m)
    floor: Tensor | None = None  # (n)
    dense: tuple[Scaled, ...] = ()

    def less(self, part: Tensor) -> Target:
        """``(1 - part) * q`` for labels q; part is (n)."""
        if self.coefficients is None:
            (label,) = self.dense
            return self._with(dense=(Scaled(label.values, label.scale - label.scale * part),))
        kept = torch.addcmul(self.coefficients, self.coefficients, part[:, None], value=-1)
        return self._with(coefficients=kept)

    def plus(self, past: Past, by: Tensor) -> Target:
        """``q + by * past``; by is (n), 0 where a label is ignored."""
        mass, values = past.mass, past.values
        by = by * self.mass if self.mass is not None and self.labels > 1 else by  # one label of a pair may be ignored
        if past.classes is None:
            scale = by if mass is None else by / mass.clamp_min(1)
            return self._with(dense=(*self.dense, Scaled(values, scale)))
        mass = _sum(values) if mass is None else mass
        others = self.num_classes - values.shape[1]
        all_of_it = mass.clamp_min(1) if others else mass.clamp_min(torch.finfo(mass.dtype).tiny)
        scale = by / all_of_it
        floor = (all_of_it - mass) * scale / max(1, others)
        classes, coefficients = past.classes, torch.addcmul(-floor[:, None], values, scale[:, None])
        if self.classes is not None and self.coefficients is not None:
            classes = torch.cat((self.classes, classes), 1)
            coefficients = torch.cat((self.coefficients, coefficients), 1)
        return self._with(classes=classes, coefficients=coefficients, floor=floor)

    def smoothed(self, epsilon: float | Tensor) -> Target:
        """``(1 - epsilon) * q + epsilon / K`` for labels q; epsilon is a number or (n)."""
        part = spread(epsilon, self.dense[0].scale if self.coefficients is None else self.coefficients[:, 0])
        floor = part / self.num_classes
        return self.less(part)._with(floor=floor if self.mass is None else floor * self.mass)

    def weighted_by_label(self, weight: Tensor) -> Target:
        """Every label's mass times the weight (K) of its class; ``mass`` is then the sum of these."""
        if self.coefficients is None or self.classes is None:
            (label,) = self.dense
            values = weighted(label.values, weight)
            return self._with(mass=values.sum(1), dense=(Scaled(values, label.scale),))
        coefficients = self.coefficients * weight.to(self.coefficients.dtype)[self.classes]
        return self._with(mass=class_sum(coefficients), coefficients=coefficients)

    def likelihood(self, log_p: Tensor) -> Tensor:
        """``<q, p>`` of the labels q, (n): what a prediction gives them; 0 where they are ignored."""
        if self.classes is None or self.coefficients is None:
            return (self.dense[0].values * log_p.exp()).sum(1)
        return class_sum(log_p.gather(1, self.classes).exp() * self.coefficients)

    def probabilities(self) -> Tensor:
        """The labels as class probabilities (n, K); of an ignored position 0."""
        if self.classes is None or self.coefficients is None:
            (label,) = self.dense
            return label.values.to(label.scale.dtype)
        return self.coefficients.new_zeros(self.coefficients.shape[0], self.num_classes).scatter_add_(
            1, self.classes, self.coefficients
        )

    def _with(
        self,
        mass: Tensor | None = None,
        classes: Tensor | None = None,
        coefficients: Tensor | None = None,
        floor: Tensor | None = None,
        dense: tuple[Scaled, ...] | None = None,
    ) -> Target:
        """What ``_replace`` does, which torch 2.6 cannot compile."""
        return Target(
            self.num_classes,
            self.labels,
            self.mass if mass is None else mass,
            self.classes if classes is None else classes,
            self.coefficients if coefficients is None else coefficients,
            self.floor if floor is None else floor,
            self.dense if dense is None else dense,
        )


def soften(target: Target, past: Past, alpha: float | Tensor) -> Target:
    """Eq. 6: ``q = (1 - alpha) * target + alpha * past``; where no past is known, q is the target."""
    trust = past.trust(alpha)
    return target.less(trust).plus(past, trust)


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
