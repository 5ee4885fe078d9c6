"""The soft cross-entropy of the paper and the targets it is made of.

The target of PS-KD (Eq. 6) is ``q = (1 - alpha) * label + alpha * past`` and its loss is ``H(q, p) = -<q, log p>``. A
target is kept in parts (a few classes with a coefficient each, dense tensors that exist anyway, an even share for every
class), so the (samples x classes) target is never built.

Shapes follow ``torch.nn.functional.cross_entropy``: logits are (K), (B, K) or (B, K, d1, ...); a *position* is one of
the (B, d1, ...) places that have a label.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import torch
from torch import Tensor

from pskd.checks import ValueChecks, at_hand, improper, outside
from pskd.errors import PskdError
from pskd.fused import Scaled, SoftCrossEntropy, class_sum, weighted
from pskd.tensors import accumulation_dtype, to_device

Reduction: TypeAlias = Literal["mean", "sum", "none"]
REDUCTIONS = get_args(Reduction)

Targets: TypeAlias = Tensor | tuple[Tensor, Tensor, Tensor | float]
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
        return self if self.values.device == device else self.each(lambda part: to_device(part, device))

    def averaged_with(self, likely: Tensor, momentum: float) -> Tensor:
        """``momentum * past + (1 - momentum) * likely`` (B, K, ...); where no past is known, ``likely`` as it is."""
        share: float | Tensor = momentum
        if self.known is not None:
            share = momentum * self.known[:, None].to(likely.dtype)
        if self.classes is None:
            return torch.lerp(likely, self.values.to(likely.dtype), share)
        kept, rest = _top_k_shares(self.values.to(likely.dtype), likely.shape[1])
        mean = likely * (1 - share) + rest[:, None] * share
        return mean.scatter_add_(1, self.classes.long(), (kept - rest[:, None]) * share)

    def each(self, change: Callable[[Tensor], Tensor]) -> Past:
        """The same change made to every part that is there."""
        return Past(
            change(self.values),
            None if self.classes is None else change(self.classes),
            None if self.known is None else change(self.known),
        )


class SoftTarget(NamedTuple):
    """``q_j = sum_m coefficients_m [classes_m = j] + floor + sum_d scale_d * values_d,j`` at every position.

    The labels come first: as the first ``labels`` of the classes, or as the first of the dense parts. ``share`` is what
    a position counts in a mean; it is no part of q.
    """

    num_classes: int
    labels: int  # how many of the m classes are labels; 0: they are class probabilities
    share: Tensor  # (B, ...)
    classes: Tensor | None = None  # (B, m, ...) int64
    coefficients: Tensor | None = None  # (B, m, ...)
    floor: Tensor | None = None  # (B, ...)
    dense: tuple[Scaled, ...] = ()

    def mixed_with(self, past: Past, alpha: float | Tensor) -> SoftTarget:
        """``(1 - alpha) * q + alpha * past``; where no past is known, q stays."""
        target, trust = self._reduced(_spread(alpha, self.share) if past.known is None else self._known(past, alpha))
        if past.classes is None:
            return target._with(dense=(*target.dense, Scaled(past.values, trust)))
        kept, rest = _top_k_shares(past.values.to(trust.dtype), self.num_classes)
        classes, coefficients = past.classes.long(), (kept - rest[:, None]) * trust[:, None]
        if target.classes is not None and target.coefficients is not None:
            classes = torch.cat((target.classes, classes), 1)
            coefficients = torch.cat((target.coefficients, coefficients), 1)
        return target._with(classes=classes, coefficients=coefficients, floor=rest * trust)

    def likelihood(self, log_p: Tensor) -> Tensor:
        """``<q, p>`` of the labels q, (B, ...): what a prediction gives them; 0 where they are ignored."""
        if self.classes is None or self.coefficients is None:
            return (self.dense[0].values * log_p.exp()).sum(1)
        return class_sum(log_p.gather(1, self.classes).exp() * self.coefficients)

    def smoothed(self, epsilon: float | Tensor) -> SoftTarget:
        """``(1 - epsilon) * q + epsilon / K``."""
        target, taken = self._reduced(_spread(epsilon, self.share))
        return target._with(floor=taken * (1 / self.num_classes))

    def emphasised(self, weight: Tensor) -> SoftTarget:
        """Every label's mass times the weight of its class, for labels q that were made with these weights (K).

        So a loss of q is that of each label as often as it counts; ``share`` is the mass of q.
        """
        if self.coefficients is None or self.classes is None:
            (label,) = self.dense
            values = weighted(label.values, weight)
            return self._with(share=values.sum(1), dense=(Scaled(values, label.scale),))
        return self._with(coefficients=self.coefficients * weight.to(self.coefficients.dtype)[self.classes])

    def _with(self, **changes: Any) -> SoftTarget:
        """What ``_replace`` does, which torch 2.6 cannot compile."""
        return SoftTarget(**{**dict(zip(SoftTarget._fields, self, strict=True)), **changes})

    def _known(self, past: Past, alpha: float | Tensor) -> Tensor:
        """alpha where a past prediction is known and 0 elsewhere, (B, d1, ...)."""
        assert past.known is not None
        everywhere = _spread(alpha, self.share) if isinstance(alpha, Tensor) else alpha
        return past.known.to(self.share.dtype) * everywhere

    def _reduced(self, part: Tensor) -> tuple[SoftTarget, Tensor]:
        """``(1 - part) * q`` for labels q, and the mass (B, ...) that this takes from them: nothing where ignored."""
        if self.coefficients is None:
            (label,) = self.dense
            return self._with(dense=(Scaled(label.values, 1 - part),)), part * self.share
        taken = self.coefficients * part[:, None]
        return self._with(coefficients=self.coefficients - taken), class_sum(taken)


def soft_cross_entropy(
    logits: Tensor,
    targets: Targets,
    past: Past | Tensor | None = None,
    alpha: float | Tensor = 0.0,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    """``H((1 - alpha) * targets + alpha * past, softmax(logits))``; the gradient flows to the logits alone.

    Args:
        logits: (K), (B, K) or (B, K, d1, ...); half precision is reduced in float32.
        targets: class indices (B, d1, ...), class probabilities shaped like the logits, or a mixed pair ``(a, b, lam)``
            of class indices with ``lam`` a number, one per sample (B), or one per position.
        past: None, probabilities shaped like the logits, or what a memory's ``recall`` returns. Where a past
            prediction is missing, the target is the label alone.
        alpha: how far the past is trusted, in [0, 1]: a number, one per sample (B), or one per position.
        ignore_index: positions with this class index take no part.
        reduction: "mean", "sum" or "none". As in ``F.cross_entropy``, the mean over class indices divides by the sum
            of the labels' weights and skips ignored positions; over class probabilities it divides by the positions.
        weight: (K), a weight per class.

    With ``alpha=0`` this is ``F.cross_entropy``. A mixed pair's loss is ``lam * loss(a) + (1 - lam) * loss(b)``.
    """
    check_reduction(reduction)
    if isinstance(past, Tensor):
        past = Past(past)
    if logits.ndim == 1:
        logits, targets, past = logits[None], _with_batch(targets), past and past.each(lambda part: part[None])
        loss = soft_cross_entropy(logits, targets, past, alpha, ignore_index, reduction, weight)
        return loss[0] if reduction == "none" else loss
    check_shapes(logits, targets, past, weight)
    check_fraction("alpha", alpha, logits)
    if at_hand(logits):
        check_targets(targets, logits.shape[1], ignore_index)
    target = soft_target(logits, targets, past, alpha, ignore_index, weight)
    loss = position_losses(logits, target, weight)
    return reduced(loss, target.share, reduction)


def reduced(losses: Tensor, share: Tensor, reduction: Reduction) -> Tensor:
    """Losses and shares (B, d1, ...) of the positions as "none", (B, d1, ...), or as one number."""
    if reduction == "none":
        return losses
    return losses.sum() if reduction == "sum" else losses.sum() / share.sum()


def position_losses(
    logits: Tensor, target: SoftTarget, weight: Tensor | None = None, log_p: Tensor | None = None
) -> Tensor:
    """``-<q, log p>`` of every position, (B, d1, ...); nothing is checked. Who has ``log_p`` need not make it again.

    A class whose logit is -inf is masked: q's mass on it is dropped, unless it is the label's, whose loss is infinite.
    """
    parts = [tensor for pair in target.dense for tensor in pair]
    loss: Tensor = SoftCrossEntropy.apply(
        logits, log_p, weight, target.labels, target.classes, target.coefficients, target.floor, *parts
    )
    return loss


def soft_target(
    logits: Tensor,
    targets: Targets,
    past: Past | None,
    alpha: float | Tensor,
    ignore_index: int = -100,
    weight: Tensor | None = None,
) -> SoftTarget:
    """Eq. 6, ``(1 - alpha) * targets + alpha * past``, in parts."""
    target = label_target(logits, targets, ignore_index, weight)
    return target if past is None else target.mixed_with(past, alpha)


def label_target(
    logits: Tensor, targets: Targets, ignore_index: int = -100, weight: Tensor | None = None
) -> SoftTarget:
    """The targets as they are, and their share in a mean."""
    num_classes = logits.shape[1]
    if isinstance(targets, Tensor) and targets.is_floating_point():
        ones = per_position(1.0, logits)
        return SoftTarget(num_classes, 0, ones, dense=(Scaled(targets, ones),))
    if isinstance(targets, Tensor):
        classes = targets.long()[:, None]
        real = classes != ignore_index
        portions = real.to(accumulation_dtype(logits.dtype))
    else:
        first, second, lam = targets
        classes = torch.stack((first, second), 1).long()
        real = classes != ignore_index
        portion = per_position(lam, logits)
        portions = torch.stack((portion, 1 - portion), 1) * real
    classes = classes * real  # an ignored position still needs a class to look up: any will do, so 0
    counted = portions if weight is None else portions * weight.to(portions.dtype)[classes]
    return SoftTarget(num_classes, classes.shape[1], class_sum(counted), classes, portions)


def _top_k_shares(values: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """The mass of the top k (B, k, ...), and of each other class (B, ...); they sum to 1 whatever was rounded."""
    mass, others = values.sum(1), num_classes - values.shape[1]
    if others == 0:
        return values / mass.clamp_min(torch.finfo(mass.dtype).tiny)[:, None], torch.zeros_like(mass)
    return values / mass.clamp_min(1)[:, None], (1 - mass).clamp_min(0) / others


def check_reduction(reduction: str) -> None:
    if reduction not in REDUCTIONS:
        raise PskdError(f"reduction is {reduction!r}; allowed are {', '.join(REDUCTIONS)}")


def check_shapes(logits: Tensor, targets: Targets, past: Past | None = None, weight: Tensor | None = None) -> None:
    """Raise where shapes or types do not fit the logits; no value on an accelerator is looked at."""
    if not logits.is_floating_point() or logits.ndim < 2 or logits.shape[1] == 0:
        raise PskdError(f"logits must be floating point (B, K, ...), got {logits.dtype} {tuple(logits.shape)}")
    positions = _positions(logits)
    for name, label in _named_labels(targets):
        if label.is_floating_point() and name != "targets":
            raise PskdError(f"{name} must be class indices, got {label.dtype}")
        if tuple(label.shape) != (tuple(logits.shape) if label.is_floating_point() else positions):
            raise PskdError(
                f"{name} has shape {tuple(label.shape)}, but logits {tuple(logits.shape)} want class indices"
                f" {positions} or class probabilities {tuple(logits.shape)}"
            )
    if not isinstance(targets, Tensor):
        check_fraction("targets[2] (lam)", targets[2], logits)
    if past is not None:
        check_past(logits, past)
    if weight is not None and tuple(weight.shape) != (logits.shape[1],):
        raise PskdError(f"weight must have one value per class ({logits.shape[1]},), got {tuple(weight.shape)}")


def check_past(logits: Tensor, past: Past) -> None:
    shape, positions = tuple(past.values.shape), _positions(logits)
    if past.classes is None:
        kind, fits = "dense past", shape == tuple(logits.shape)
    else:
        kind, fits = "top-k past", (shape[:1] + shape[2:] == positions and 0 <= shape[1] <= logits.shape[1])
        fits = fits and tuple(past.classes.shape) == shape
    if not fits:
        raise PskdError(f"past: a {kind} of shape {shape} does not fit logits {tuple(logits.shape)}")
    if past.known is not None and tuple(past.known.shape) != positions:
        raise PskdError(f"past.known has shape {tuple(past.known.shape)}, but there are {positions} labels")


def check_fraction(name: str, value: float | Tensor, logits: Tensor) -> None:
    """A number in [0, 1], one per sample or one per position; a tensor's values are looked at on the CPU only."""
    if isinstance(value, Tensor):
        positions = _positions(logits)
        if tuple(value.shape) not in ((), positions[:1], positions):
            raise PskdError(f"{name} has shape {tuple(value.shape)}; a number, or one per sample or label {positions}")
        if value.device.type != "cpu" or torch.compiler.is_compiling() or value.numel() == 0:
            return
        wrong = value[~((value >= 0) & (value <= 1))]
        if wrong.numel():
            raise PskdError(f"{name} must lie in [0, 1], got {float(wrong[0])}")
    elif not 0 <= value <= 1:
        raise PskdError(f"{name} must lie in [0, 1], got {value}")


def check_targets(targets: Targets, num_classes: int, ignore_index: int, checks: ValueChecks | None = None) -> Targets:
    """Raise where class probabilities do not sum to 1, or a class index is neither in 0..num_classes-1 nor ignored.

    Off the CPU, give ``checks``. Returns the targets with class indices as int64, and wrong ones, which ``checks``
    reports later, as ignored.
    """
    checks = checks or ValueChecks()

    def checked(name: str, labels: Tensor) -> Tensor:
        if labels.is_floating_point():
            check_probabilities(name, labels, checks)
            return labels
        labels = labels.long()
        if (wrong := outside(labels, num_classes)) is None:
            return labels
        wrong = wrong & (labels != ignore_index)
        checks.require_none(
            wrong,
            lambda count: (
                f"{name}: {count} class indices lie outside 0..{num_classes - 1} (smallest {int(labels.min())},"
                f" largest {int(labels.max())}); check the labels, or give the model more classes"
            ),
        )
        return labels if labels.device.type == "cpu" else torch.where(wrong, ignore_index, labels)

    named = _named_labels(targets)
    if isinstance(targets, Tensor):
        return checked(*named[0])
    return checked(*named[0]), checked(*named[1]), targets[2]


def check_probabilities(name: str, probs: Tensor, checks: ValueChecks) -> None:
    """Raise where a row (K) of (B, K, ...) has a negative number or does not sum to 1."""
    wrong, sums = improper(probs)
    checks.require_none(
        wrong,
        lambda count: (
            f"{name}: {count} of {wrong.numel()} rows are no class probabilities, none negative and 1 in sum (sums"
            f" {float(sums.min()):.4g} to {float(sums.max()):.4g}): divide each by its sum; several true classes at"
            " once need a binary loss per class"
        ),
    )


def _named_labels(targets: Targets) -> list[tuple[str, Tensor]]:
    if isinstance(targets, Tensor):
        return [("targets", targets)]
    if len(targets) != 3:
        raise PskdError(f"targets: a mixed pair is (a, b, lam), got a tuple of {len(targets)}")
    return [("targets[0]", targets[0]), ("targets[1]", targets[1])]


def _positions(logits: Tensor) -> tuple[int, ...]:
    return (logits.shape[0], *logits.shape[2:])


def per_position(value: float | Tensor, logits: Tensor) -> Tensor:
    """A number, one per sample (B) or one per position, as (B, d1, ...) in the type that sums are made in."""
    return _spread(value, logits[:, 0])


def _spread(value: float | Tensor, like: Tensor) -> Tensor:
    """A number, one per sample (B) or one per position, as (B, d1, ...) like another tensor of the positions."""
    value = torch.as_tensor(value, dtype=accumulation_dtype(like.dtype), device=like.device)
    if value.ndim == 1:
        value = value.reshape(-1, *[1] * (like.ndim - 1))
    return value.expand(like.shape)


def _with_batch(targets: Targets) -> Targets:
    return targets[None] if isinstance(targets, Tensor) else (targets[0][None], targets[1][None], targets[2])
