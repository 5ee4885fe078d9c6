"""The one door: what a loop hands to a method is checked here, once, and comes out as a ``Batch`` of positions.

Shapes follow ``torch.nn.functional.cross_entropy``: logits are (B, K) or (B, K, d1, ...); each of the (B, d1, ...)
places is a *position* with a label. Behind the door there are n positions in a row, so logits are (n, K), labels (n).
Types and shapes are refused at once. Values are looked at here and now on the CPU, elsewhere one step later
(`checks.py`); until then a wrong label counts as ignored.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from pskd.checks import ValueChecks, all_inside, allow_nonfinite, at_hand, improper, nonfinite_is_allowed
from pskd.errors import PskdError
from pskd.linear_head import Output, Part
from pskd.targets import (
    IGNORE_INDEX,
    REDUCTIONS,
    Past,
    Reduction,
    Scaled,
    SoftCrossEntropy,
    Target,
    Targets,
    class_sum,
    soften,
    weighted,
)
from pskd.tensors import to_device

__all__ = ["soft_cross_entropy"]

NO_GRADIENT = "logits have no gradient: call the method in training only, so that no record is overwritten"


class Batch(NamedTuple):
    """The n positions of a batch, or of a part of it, as they came through the door."""

    logits: Tensor  # (n, K), with gradient
    log_p: Tensor  # (n, K), their log softmax, without
    p: Tensor | None  # (n, K), its exponential; None: it is made where it is needed, to save an accelerator's memory
    target: Target  # the labels in parts
    labels: Tensor | None  # (n) int64; None: the targets are not class indices
    distilled: Tensor | None  # (n), who is distilled; None: all
    valid: Tensor | None  # (n), distilled and not ignored: where a memory is read and written; None: everywhere
    share: Tensor | None  # (n), what a position counts in a mean, 0 where it is ignored; None: 1 everywhere
    masked: bool  # whether a class may be masked, with a logit of -inf; false: all were looked at, none is
    failed: Tensor | None  # (n), where there is no prediction: logits are not finite; None: nowhere
    weight: Tensor | None  # (K), the class weights
    positions: tuple[int, ...]  # (B, d1, ...)
    part: Part | None  # which of the positions these are; None: all
    checks: ValueChecks

    @property
    def own_labels(self) -> Tensor | None:
        """The class of each sample that may teach, (n); None where nobody knows it, or whose image is mixed."""
        if self.target.labels == 2 and self.distilled is not None and self.target.classes is not None:
            return self.target.classes[:, 0]
        return self.labels

    @property
    def label_weight(self) -> Tensor | None:
        """What a term that compares whole distributions counts, (n); None: 1 everywhere.

        That is its ``share`` in a mean, but for class probabilities, which share alike, the mean weight of their
        classes.
        """
        if self.weight is None or self.target.coefficients is not None:
            return self.share
        return weighted(self.target.dense[0].values, self.weight).sum(1)

    def cross_entropy(self, target: Target) -> Tensor:
        """``H(target, p)`` of every position, (n); the gradient flows to the logits alone."""
        dense = [tensor for scaled in target.dense for tensor in scaled]
        loss: Tensor = SoftCrossEntropy.apply(
            self.logits, self.log_p, self.p, self.masked, self.failed, target.labels, target.mass, self.weight,
            target.classes, target.coefficients, target.floor, *dense,
        )  # fmt: skip
        return loss

    def counted(self, term: Tensor) -> Tensor:
        """A term (n) that compares whole distributions, as it counts: 0 where not distilled, else by its label."""
        weight = self.label_weight
        term = term if weight is None else term * weight
        return term if self.distilled is None else torch.where(self.distilled, term, 0)

    def where_distilled(self, value: float) -> float | Tensor:
        """``value`` where a position is distilled and 0 elsewhere: a number, or (n)."""
        return value if self.distilled is None else value * self.distilled.to(self.log_p.dtype)

    def flat(self, logits: Tensor) -> Tensor:
        """Logits (B, K, d1, ...) as (n, K)."""
        return _flat(logits)

    def of_logits(self, logits: Tensor) -> Batch:
        """The same positions with other logits (B, K, d1, ...) of the same student."""
        logits = self.flat(logits)
        log_p = log_likelihood(logits)
        p, masked, failed = _look_at(log_p, self.checks)
        return self._replace(logits=logits, log_p=log_p, p=p, masked=masked, failed=failed)

    def unweighted(self) -> Batch:
        return self if self.weight is None else self._replace(weight=None)


def door(
    logits: Tensor,
    targets: Targets,
    distilled: Tensor | None = None,
    *,
    weight: Tensor | None = None,
    checks: ValueChecks,
    part: Part | None = None,
    ignore_index: int = IGNORE_INDEX,
) -> Batch:
    """The batch behind the door, or a ``PskdError`` that says what is wrong with it."""
    check_shapes(logits, targets, weight)
    positions = (logits.shape[0], *logits.shape[2:])
    mask = None if distilled is None else distilled_mask(distilled, positions, logits.device)
    flat = logits if logits.ndim == 2 else _flat(logits)
    log_p = log_likelihood(flat)
    p, masked, failed = _look_at(log_p, checks)
    labels = real = None
    if isinstance(targets, tuple):
        target, real = _mixed_target(targets, log_p, positions, ignore_index, checks)
    elif targets.is_floating_point():
        target = _probability_target("targets", _flat(targets), checks, log_p)
    else:
        labels, real = _check_labels("targets", targets.reshape(-1), log_p.shape[1], ignore_index, checks)
        mass = None if real is None else real.to(log_p.dtype)
        ones = log_p.new_ones(1).expand(log_p.shape[0], 1) if mass is None else mass[:, None]
        target = Target(log_p.shape[1], 1, mass, labels[:, None], ones)
    valid = real if mask is None or real is None else real & mask
    share = target.mass
    if weight is not None and target.classes is not None and target.coefficients is not None:
        share = class_sum(target.coefficients * weight.to(log_p.dtype)[target.classes])
    valid = mask if valid is None else valid
    return Batch(flat, log_p, p, target, labels, mask, valid, share, masked, failed, weight, positions, part, checks)


def check_trains(output: Output) -> None:
    """Raise where the logits have no gradient: whoever only evaluates must not teach the memory."""
    if not output.requires_grad:
        raise PskdError(NO_GRADIENT)


def check_shapes(logits: Tensor, targets: Targets, weight: Tensor | None = None) -> None:
    """Raise where shapes or types do not fit the logits; no value on an accelerator is looked at."""
    if not logits.is_floating_point() or logits.ndim < 2 or logits.shape[1] == 0:
        raise PskdError(f"logits must be floating point (B, K, ...), got {logits.dtype} {tuple(logits.shape)}")
    positions, whole = (logits.shape[0], *logits.shape[2:]), tuple(logits.shape)
    if isinstance(targets, Tensor):
        given = {"targets": targets}
    elif len(targets) == 3:
        given = {"targets[0]": targets[0], "targets[1]": targets[1]}
        check_fraction("targets[2] (lam)", targets[2], positions)
    else:
        raise PskdError(f"targets: a mixed pair is (a, b, lam), got a tuple of {len(targets)}")
    for name, label in given.items():
        if label.dtype == torch.bool or label.is_complex():
            raise PskdError(f"{name} must be class indices or class probabilities, got {label.dtype}")
        if label.is_floating_point() and name != "targets":
            raise PskdError(f"{name} must be class indices, got {label.dtype}")
        if tuple(label.shape) != (whole if label.is_floating_point() else positions):
            raise PskdError(
                f"{name} has shape {tuple(label.shape)}, but logits {whole} want class indices"
                f" {positions} or class probabilities {whole}"
            )
    if weight is not None and tuple(weight.shape) != (logits.shape[1],):
        raise PskdError(f"weight must have one value per class ({logits.shape[1]},), got {tuple(weight.shape)}")


def check_fraction(name: str, value: float | Tensor, positions: tuple[int, ...]) -> None:
    """A number in [0, 1], one per sample or one per position; a tensor's values are looked at on the CPU only."""
    if isinstance(value, Tensor):
        if tuple(value.shape) not in ((), positions[:1], positions):
            raise PskdError(f"{name} has shape {tuple(value.shape)}; a number, or one per sample or label {positions}")
        if not at_hand(value) or value.numel() == 0:
            return
        wrong = value[~((value >= 0) & (value <= 1))]
        if wrong.numel():
            raise PskdError(f"{name} must lie in [0, 1], got {float(wrong[0])}")
    elif not 0 <= value <= 1:
        raise PskdError(f"{name} must lie in [0, 1], got {value}")


def distilled_mask(distilled: Tensor, positions: tuple[int, ...], device: torch.device) -> Tensor:
    """``distilled``, (B) or one per label, as a mask (n)."""
    if tuple(distilled.shape) not in (positions, positions[:1]):
        raise PskdError(f"distilled has shape {tuple(distilled.shape)}; one per sample or label is {positions}")
    mask = distilled if distilled.dtype == torch.bool else distilled != 0
    return _per_position(to_device(mask, device), positions)


def log_likelihood(logits: Tensor) -> Tensor:
    """log softmax (n, K) in the type that sums are made in; nothing flows back through it."""
    return torch.log_softmax(logits.detach(), 1, torch.promote_types(logits.dtype, torch.float32))


def _flat(values: Tensor) -> Tensor:
    """(B, K, d1, ...) as (n, K)."""
    return values if values.ndim == 2 else values.movedim(1, -1).reshape(-1, values.shape[1])


def _per_position(values: Tensor, positions: tuple[int, ...]) -> Tensor:
    """One value, one per sample (B) or one per position as (n)."""
    if values.ndim == 1 and len(positions) > 1:
        values = values.reshape(-1, *[1] * (len(positions) - 1))
    return values.expand(positions).reshape(-1)


def _flat_past(past: Past, like: Tensor) -> Past:
    classes = None if past.classes is None else _flat(past.classes).long()
    known = None if past.known is None else past.known.reshape(-1)
    return Past(_flat(past.values).to(like.dtype), classes, known, past.mass)


def _look_at(log_p: Tensor, checks: ValueChecks) -> tuple[Tensor | None, bool, Tensor | None]:
    """The softmax, if it is at hand; whether a class may be masked; and which logits (n) make no prediction.

    The latter are reported. A NaN, a logit of +inf, or -inf in all classes makes all of a log softmax NaN, so one class
    tells. On a CPU the softmax is made once for gradient and memory.
    """
    p = None
    if at_hand(log_p):
        p, lowest = log_p.exp(), float(log_p.amin()) if log_p.numel() else 0.0
        if math.isfinite(lowest):
            return p, False, None
        if not math.isnan(lowest):
            return p, True, None
    failed = log_p[:, 0].isnan()
    if not nonfinite_is_allowed():
        count = len(log_p)
        checks.require_none(
            failed,
            lambda wrong: (
                f"logits: {wrong} of {count} rows are NaN or infinite{checks.when}; lower the learning rate or look for"
                " a division by zero in the model"
            ),
        )
    return p, True, failed


def _check_labels(
    name: str, labels: Tensor, num_classes: int, ignore_index: int, checks: ValueChecks
) -> tuple[Tensor, Tensor | None]:
    """Class indices (n) that can be looked up, and where they are not ignored; None: nowhere."""
    labels = labels.long()
    ignores_a_class = 0 <= ignore_index < num_classes
    if not ignores_a_class and all_inside(labels, num_classes):
        return labels, None
    inside = labels.clamp(0, num_classes - 1)
    real = inside == labels
    checks.require_none(
        (labels != ignore_index) > real,
        lambda count: (
            f"{name}: {count} class indices lie outside 0..{num_classes - 1} (smallest {int(labels.min())},"
            f" largest {int(labels.max())}); check the labels, or give the model more classes"
        ),
    )
    return inside, real & (labels != ignore_index) if ignores_a_class else real


def _mixed_target(
    targets: tuple[Tensor, Tensor, Tensor | float],
    log_p: Tensor,
    positions: tuple[int, ...],
    ignore_index: int,
    checks: ValueChecks,
) -> tuple[Target, Tensor | None]:
    """``lam * a + (1 - lam) * b`` and where not both are ignored; an ignored label of the two has mass 0."""
    classes = log_p.shape[1]
    first, real_first = _check_labels("targets[0]", targets[0].reshape(-1), classes, ignore_index, checks)
    second, real_second = _check_labels("targets[1]", targets[1].reshape(-1), classes, ignore_index, checks)
    lam = targets[2]
    if isinstance(lam, Tensor):
        lam = _per_position(to_device(lam, log_p.device).to(log_p.dtype), positions)
    else:
        lam = torch.full_like(log_p[:, 0], lam)
    coefficients, mass, real = torch.stack((lam, 1 - lam), 1), None, None
    if real_first is not None or real_second is not None:
        either = [torch.ones_like(lam, dtype=torch.bool) if r is None else r for r in (real_first, real_second)]
        coefficients = coefficients * torch.stack(either, 1)
        mass, real = coefficients.sum(1), either[0] | either[1]
    return Target(classes, 2, mass, torch.stack((first, second), 1), coefficients), real


def _probability_target(name: str, probs: Tensor, checks: ValueChecks, log_p: Tensor) -> Target:
    wrong, sums = improper(probs)
    checks.require_none(
        wrong,
        lambda count: (
            f"{name}: {count} of {wrong.numel()} rows are no class probabilities, none negative and 1 in sum (sums"
            f" {float(sums.min()):.4g} to {float(sums.max()):.4g}): divide each by its sum; several true classes at"
            " once need a binary loss per class"
        ),
    )
    return Target(log_p.shape[1], 0, dense=(Scaled(probs, torch.ones_like(log_p[:, 0])),))


def check_past(past: Past, logits: Tensor) -> None:
    """Raise where past predictions (n, K) or (n, k) do not fit logits (n, K)."""
    shape, (count, num_classes) = tuple(past.values.shape), logits.shape
    if past.classes is None:
        kind, fits = "dense past", shape == (count, num_classes)
    else:
        kind, fits = "top-k past", shape[0] == count and shape[1] <= num_classes and past.classes.shape == shape
    if not fits:
        raise PskdError(f"past: a {kind} of shape {shape} does not fit logits {tuple(logits.shape)}")
    if past.known is not None and tuple(past.known.shape) != (count,):
        raise PskdError(f"past.known has shape {tuple(past.known.shape)}, but there are {count} positions")


def check_reduction(reduction: str) -> None:
    if reduction not in REDUCTIONS:
        raise PskdError(f"reduction is {reduction!r}; allowed are {', '.join(REDUCTIONS)}")


def reduce(losses: Tensor, share: Tensor | None, reduction: Reduction, positions: tuple[int, ...]) -> Tensor:
    """Losses and shares (n) as "none", (B, d1, ...), or as one number."""
    if reduction == "none":
        return losses.view(positions)
    if reduction == "sum":
        return losses.sum()
    return losses.sum() / (losses.shape[0] if share is None else share.sum())  # mean() takes three times as long


def soft_cross_entropy(
    logits: Tensor,
    targets: Targets,
    past: Past | Tensor | None = None,
    alpha: float | Tensor = 0.0,
    ignore_index: int = IGNORE_INDEX,
    reduction: Reduction = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    """``H((1 - alpha) * targets + alpha * past, softmax(logits))``; the gradient flows to the logits alone.

    Args:
        logits: (K), (B, K) or (B, K, d1, ...); half precision is reduced in float32.
        targets: class indices (B, d1, ...), class probabilities shaped like the logits, or a mixed pair ``(a, b, lam)``
            of class indices with ``lam`` a number, one per sample (B), or one per position.
        past: None, probabilities shaped like the logits, or what a memory's ``read`` returns. Where a past prediction
            is missing, the target is the label alone.
        alpha: how far the past is trusted, in [0, 1]: a number, one per sample (B), or one per position.
        ignore_index: positions with this class index take no part.
        reduction: "mean", "sum" or "none". As in ``F.cross_entropy``, the mean over class indices divides by the sum
            of the labels' weights and skips ignored positions; over class probabilities it divides by the positions.
        weight: (K), a weight per class.

    With ``alpha=0`` this is ``F.cross_entropy``. A mixed pair's loss is ``lam * loss(a) + (1 - lam) * loss(b)``.
    """
    check_reduction(reduction)
    if logits.ndim == 1:
        alone = (targets[0][None], targets[1][None], targets[2]) if isinstance(targets, tuple) else targets[None]
        if isinstance(past, Past):
            past = Past(*(part[None] if isinstance(part, Tensor) else part for part in past))  # type: ignore[arg-type]
        elif past is not None:
            past = past[None]
        loss = soft_cross_entropy(logits[None], alone, past, alpha, ignore_index, reduction, weight)
        return loss[0] if reduction == "none" else loss
    checks = ValueChecks()
    with allow_nonfinite():
        batch = door(logits, targets, weight=weight, checks=checks, ignore_index=ignore_index)
    target = batch.target
    check_fraction("alpha", alpha, batch.positions)
    if past is not None:
        past = _flat_past(Past(past) if isinstance(past, Tensor) else past, batch.log_p)
        check_past(past, batch.logits)
        if isinstance(alpha, Tensor):
            alpha = _per_position(alpha.to(batch.log_p), batch.positions)
        if batch.valid is not None:
            past = past._replace(known=batch.valid if past.known is None else past.known & batch.valid)
        target = soften(target, past, alpha)
        if past.classes is None and past.mass is None:  # it need not sum to 1
            mass = torch.ones_like(batch.log_p[:, 0]) if target.mass is None else target.mass
            target = target._replace(mass=mass * (1 + past.trust(alpha) * (past.values.sum(1) - 1)))
    return reduce(batch.cross_entropy(target), batch.share, reduction, batch.positions)
