"""The soft cross-entropy of the paper and the targets it is made of.

The target of PS-KD (Eq. 6) is ``q = (1 - alpha) * label + alpha * past``, and its loss is the cross-entropy
``H(q, p) = sum_j q_j * logsumexp(z) - <q, z>``. A target is kept in parts (a few classes with a coefficient each, a
dense tensor that exists anyway, an even share for every class), so the (samples x classes) target is never built.

Shapes follow ``torch.nn.functional.cross_entropy``: logits are (K), (B, K) or (B, K, d1, ...); a *position* is one of
the (B, d1, ...) places that have a label.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from pskd.errors import PskdError

REDUCTIONS = ("mean", "sum", "none")

Labels: TypeAlias = Tensor | tuple[Tensor, Tensor, Tensor | float]
"""Class indices (B, ...), class probabilities (B, K, ...), or a mixed pair ``(a, b, lam)``: lam * a + (1 - lam) * b."""


class Past(NamedTuple):
    """Past predictions, the class on dimension 1: dense (B, K, ...), or the top k classes and their values (B, k, ...).

    What the top k leave of the mass is spread evenly over the other classes. ``known`` (B, ...) is false where there is
    no past prediction; None means that all are known.
    """

    values: Tensor
    classes: Tensor | None = None
    known: Tensor | None = None

    def to(self, device: torch.device) -> Past:
        return self.each(lambda part: part.to(device, non_blocking=True))

    def each(self, change: Callable[[Tensor], Tensor]) -> Past:
        """The same change made to every part that is there."""
        return Past(
            change(self.values),
            None if self.classes is None else change(self.classes),
            None if self.known is None else change(self.known),
        )


class SoftTarget(NamedTuple):
    """``q_j = sum_m coefficients_m [classes_m = j] + scale * dense_j + floor * weight_j``, in parts; B positions."""

    classes: Tensor | None = None  # (B, m, ...) int64
    coefficients: Tensor | None = None  # (B, m, ...)
    dense: Tensor | None = None  # (B, K, ...)
    scale: Tensor | None = None  # (B, ...)
    floor: Tensor | None = None  # (B, ...)
    weight: Tensor | None = None  # (K)


def soft_cross_entropy(
    logits: Tensor,
    targets: Labels,
    past: Past | Tensor | None = None,
    alpha: float | Tensor = 0.0,
    ignore_index: int = -100,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    """``H((1 - alpha) * targets + alpha * past, softmax(logits))``; the gradient flows to the logits alone.

    Args:
        logits: (K), (B, K) or (B, K, d1, ...); half precision is reduced in float32.
        targets: class indices (B, d1, ...), class probabilities shaped like the logits, or a mixed pair ``(a, b, lam)``
            of class indices with ``lam`` a number or one per sample.
        past: None, probabilities shaped like the logits, or what a memory's ``recall`` returns. Where a past
            prediction is missing, the target is the label alone.
        alpha: how far the past is trusted, in [0, 1]: a number, one per sample (B), or one per position.
        ignore_index: positions with this class index take no part.
        reduction: "mean", "sum" or "none". As in ``F.cross_entropy``, the mean over class indices divides by the sum
            of the labels' weights and skips ignored positions; over class probabilities it divides by the positions.
        weight: (K), a weight per class.

    With ``alpha=0`` this is ``F.cross_entropy``.
    """
    if reduction not in REDUCTIONS:
        raise PskdError(f"reduction is {reduction!r}; allowed are {', '.join(REDUCTIONS)}")
    if isinstance(past, Tensor):
        past = Past(past)
    if logits.ndim == 1:
        logits, targets, past = logits[None], _with_batch(targets), past and past.each(lambda part: part[None])
        loss = soft_cross_entropy(logits, targets, past, alpha, ignore_index, reduction, weight)
        return loss[0] if reduction == "none" else loss
    check_shapes(logits, targets, past, weight)
    check_alpha(alpha)
    if logits.device.type == "cpu" and not torch.compiler.is_compiling():
        check_class_indices(targets, logits.shape[1], ignore_index)
    loss, share = position_losses(logits, targets, past, alpha, ignore_index, weight)
    if reduction == "none":
        return loss
    return loss.sum() if reduction == "sum" else loss.sum() / share.sum()


def position_losses(
    logits: Tensor,
    targets: Labels,
    past: Past | None,
    alpha: float | Tensor,
    ignore_index: int = -100,
    weight: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The loss of every position and its share in a mean's denominator, both (B, d1, ...); nothing is checked."""
    target, share = soft_target(logits, targets, past, alpha, ignore_index, weight)
    return _SoftCrossEntropy.apply(logits, *target), share


def soft_target(
    logits: Tensor,
    targets: Labels,
    past: Past | None,
    alpha: float | Tensor,
    ignore_index: int = -100,
    weight: Tensor | None = None,
) -> tuple[SoftTarget, Tensor]:
    """``(1 - alpha) * targets + alpha * past`` in parts, and the share (B, ...) of each position in a mean."""
    label, share = _label_part(logits, targets, ignore_index, weight)
    if past is None:
        return label, share
    trust = _per_position(alpha, logits)
    if past.known is not None:
        trust = trust * past.known
    if label.classes is not None:
        trust = trust * _real(targets, ignore_index)
    return _joined(_scaled(label, 1 - trust), _scaled(_past_part(logits, past, weight), trust)), share


def _label_part(logits: Tensor, targets: Labels, ignore_index: int, weight: Tensor | None) -> tuple[SoftTarget, Tensor]:
    """The labels alone as a target, and the share of each position in a mean."""
    dtype = wide(logits.dtype)
    if isinstance(targets, Tensor) and targets.is_floating_point():
        share = torch.ones(_positions(logits), dtype=dtype, device=logits.device)
        dense = targets if weight is None else targets * _per_class(weight, logits)
        return SoftTarget(dense=dense, scale=share), share
    if isinstance(targets, Tensor):
        classes = targets.long()[:, None]
        coefficients = (classes != ignore_index).to(dtype)
    else:
        first, second, lam = targets
        classes = torch.stack((first, second), 1).long()
        portion = _per_position(lam, logits)
        coefficients = torch.stack((portion, 1 - portion), 1) * (classes != ignore_index)
    # An ignored position still needs a class to look up: any will do, its coefficient is 0.
    classes = torch.where(classes == ignore_index, 0, classes)
    if weight is not None:
        coefficients = coefficients * weight.to(dtype)[classes]
    return SoftTarget(classes, coefficients), coefficients.sum(1)


def _past_part(logits: Tensor, past: Past, weight: Tensor | None) -> SoftTarget:
    """The past predictions alone as a target: dense, or the top k and an even rest of the mass."""
    dtype = wide(logits.dtype)
    if past.classes is None:
        dense = past.values if weight is None else past.values * _per_class(weight, logits)
        return SoftTarget(dense=dense, scale=torch.ones(_positions(logits), dtype=dtype, device=logits.device))
    mass = past.values.sum(1, dtype=dtype)
    kept = past.values / mass.clamp_min(1)[:, None]  # rounding up may have left more than 1
    rest = (1 - mass).clamp_min(0) / max(1, logits.shape[1] - kept.shape[1])
    classes, coefficients = past.classes.long(), kept - rest[:, None]
    if weight is not None:
        coefficients = coefficients * weight.to(dtype)[classes]
    return SoftTarget(classes, coefficients, floor=rest, weight=weight)


def _scaled(target: SoftTarget, factor: Tensor) -> SoftTarget:
    """``factor * target``, with one factor (B, ...) per position."""
    return target._replace(
        coefficients=None if target.coefficients is None else target.coefficients * factor[:, None],
        scale=None if target.scale is None else target.scale * factor,
        floor=None if target.floor is None else target.floor * factor,
    )


def _joined(label: SoftTarget, past: SoftTarget) -> SoftTarget:
    """``label + past``. Only class probabilities with a dense past, which are whole tensors both, are added as such."""
    joined = past
    if label.classes is not None and past.classes is not None:
        assert label.coefficients is not None
        assert past.coefficients is not None
        joined = joined._replace(
            classes=torch.cat((label.classes, past.classes), 1),
            coefficients=torch.cat((label.coefficients, past.coefficients), 1),
        )
    elif label.classes is not None:
        joined = joined._replace(classes=label.classes, coefficients=label.coefficients)
    if label.dense is not None:
        assert label.scale is not None
        if past.dense is None:
            return joined._replace(dense=label.dense, scale=label.scale)
        assert past.scale is not None
        dense = label.dense * label.scale[:, None] + past.dense * past.scale[:, None]
        return joined._replace(dense=dense, scale=torch.ones_like(label.scale))
    return joined


class _SoftCrossEntropy(torch.autograd.Function):
    """``sum_j q_j * logsumexp(z) - <q, z>`` and its gradient ``sum_j q_j * softmax(z) - q`` in one pass each."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        classes: Tensor | None,
        coefficients: Tensor | None,
        dense: Tensor | None,
        scale: Tensor | None,
        floor: Tensor | None,
        weight: Tensor | None,
    ) -> Tensor:
        z = logits.to(wide(logits.dtype))
        total, inner = z.new_zeros(()), z.new_zeros(())
        if classes is not None:
            assert coefficients is not None
            total = coefficients.sum(1)
            inner = (z.gather(1, classes) * coefficients).sum(1)
        if dense is not None:
            assert scale is not None
            total = total + scale * dense.sum(1, dtype=z.dtype)
            inner = inner + scale * (dense * z).sum(1)
        if floor is not None:
            shares = torch.ones((), dtype=z.dtype, device=z.device) if weight is None else _per_class(weight, z)
            total = total + floor * shares.expand(1, z.shape[1], *shares.shape[2:]).sum(1)
            inner = inner + floor * (z if weight is None else z * shares).sum(1)
        ctx.save_for_backward(logits, classes, coefficients, dense, scale, floor, weight, total)
        return total * torch.logsumexp(z, 1) - inner

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        logits, classes, coefficients, dense, scale, floor, weight, total = ctx.saved_tensors
        (upstream,) = outer
        z = logits.to(wide(logits.dtype))
        gradient = torch.softmax(z, 1) * (total * upstream)[:, None]
        if floor is not None:
            share = (floor * upstream)[:, None]
            gradient = gradient - (share if weight is None else share * _per_class(weight, z))
        if dense is not None:
            gradient = torch.addcmul(gradient, dense.to(z.dtype), (scale * upstream)[:, None], value=-1)
        if classes is not None:
            gradient = gradient.scatter_add(1, classes, -coefficients * upstream[:, None])
        return gradient.to(logits.dtype), None, None, None, None, None, None


def check_shapes(logits: Tensor, targets: Labels, past: Past | None, weight: Tensor | None = None) -> None:
    """Shapes and types that do not fit the logits, each in one line; never looks at a value."""
    if not logits.is_floating_point() or logits.ndim < 1 or 0 in logits.shape[1:2]:
        raise PskdError(f"logits must be floating point (B, K, ...), got {logits.dtype} {tuple(logits.shape)}")
    positions = _positions(logits)
    for name, label in _named_labels(targets):
        wanted = tuple(logits.shape) if label.is_floating_point() else positions
        if tuple(label.shape) != wanted:
            raise PskdError(
                f"{name} has shape {tuple(label.shape)}, but logits {tuple(logits.shape)} want class indices"
                f" {positions} or class probabilities {tuple(logits.shape)}"
            )
        if label.is_floating_point() and name != "targets":
            raise PskdError(f"{name} must be class indices, got {label.dtype}")
    if past is not None:
        wanted = (
            tuple(logits.shape) if past.classes is None else (logits.shape[0], past.values.shape[1], *positions[1:])
        )
        if tuple(past.values.shape) != wanted:
            kind = "dense past" if past.classes is None else "top-k past"
            raise PskdError(
                f"past: a {kind} of shape {tuple(past.values.shape)} does not fit logits {tuple(logits.shape)}"
            )
    if weight is not None and tuple(weight.shape) != (logits.shape[1],):
        raise PskdError(f"weight must have one value per class ({logits.shape[1]},), got {tuple(weight.shape)}")


def check_alpha(alpha: float | Tensor) -> None:
    """alpha in [0, 1]; a tensor is looked at only on the CPU, where that costs no waiting."""
    if isinstance(alpha, Tensor) and (alpha.device.type != "cpu" or torch.compiler.is_compiling()):
        return
    low, high = (alpha, alpha) if not isinstance(alpha, Tensor) else (float(alpha.min()), float(alpha.max()))
    if not (low >= 0 and high <= 1):
        raise PskdError(f"alpha must lie in [0, 1], got {low if not low >= 0 else high}")


def check_class_indices(targets: Labels, num_classes: int, ignore_index: int) -> None:
    """Class indices inside 0..num_classes-1, or ``ignore_index``."""
    for name, label in _named_labels(targets):
        if label.is_floating_point() or label.numel() == 0:
            continue
        low, high = (int(bound) for bound in torch.aminmax(label))
        if (low < 0 or high >= num_classes) and bool(wrong := out_of_range(label, num_classes, ignore_index).sum()):
            raise PskdError(class_index_message(name, int(wrong), low, high, num_classes))


def out_of_range(labels: Tensor, num_classes: int, ignore_index: int) -> Tensor:
    """True where a class index is neither a class nor ``ignore_index``."""
    return ((labels < 0) | (labels >= num_classes)) & (labels != ignore_index)


def class_index_message(name: str, wrong: int, low: int, high: int, num_classes: int) -> str:
    return (
        f"{name}: {wrong} class indices lie outside 0..{num_classes - 1} (smallest {low}, largest {high});"
        " check the labels, or give the model more classes"
    )


def _named_labels(targets: Labels) -> list[tuple[str, Tensor]]:
    if isinstance(targets, Tensor):
        return [("targets", targets)]
    if len(targets) != 3:
        raise PskdError(f"targets: a mixed pair is (a, b, lam), got a tuple of {len(targets)}")
    return [("targets[0]", targets[0]), ("targets[1]", targets[1])]


def _real(targets: Labels, ignore_index: int) -> Tensor:
    """True (B, ...) where a position of class indices has a label; a mixed pair with one real label has one."""
    if isinstance(targets, Tensor):
        return targets != ignore_index
    return (targets[0] != ignore_index) | (targets[1] != ignore_index)


def _positions(logits: Tensor) -> tuple[int, ...]:
    return (logits.shape[0], *logits.shape[2:])


def _per_position(value: float | Tensor, logits: Tensor) -> Tensor:
    """A number, one per sample or one per position, as (B, d1, ...)."""
    positions = _positions(logits)
    value = torch.as_tensor(value, dtype=wide(logits.dtype), device=logits.device)
    if value.ndim == 1:
        value = value.reshape(-1, *[1] * (len(positions) - 1))
    return value.expand(positions)


def _per_class(weight: Tensor, logits: Tensor) -> Tensor:
    return weight.to(wide(logits.dtype)).reshape(1, -1, *[1] * (logits.ndim - 2))


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type that sums over classes are made in: float32, or float64 for float64."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _with_batch(targets: Labels) -> Labels:
    return targets[None] if isinstance(targets, Tensor) else (targets[0][None], targets[1][None], targets[2])
