"""What the methods beside PS-KD share: checked losses position by position, softened divergence, who is distilled.

A *position* is one of the (B, d1, ...) places of logits (B, K, d1, ...) that have a label.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from pskd.checks import ValueChecks
from pskd.errors import PskdError
from pskd.fused import weighted
from pskd.methods.base import IGNORE_INDEX, Loss, Method, distilled_mask
from pskd.targets import (
    Past,
    SoftTarget,
    Targets,
    check_probabilities,
    check_shapes,
    check_targets,
    label_target,
    position_losses,
    reduced,
)
from pskd.tensors import accumulation_dtype


def label_losses(
    logits: Tensor,
    targets: Targets,
    epsilon: float | Tensor = 0.0,
    weight: Tensor | None = None,
    by_label: bool = False,
    checks: ValueChecks | None = None,
) -> tuple[Tensor, Tensor]:
    """``H((1 - epsilon) * y + epsilon / K, p)`` and the share in a mean of every position, both (B, d1, ...).

    Args:
        logits: (B, K, d1, ...), of the student.
        targets: class indices (-100 has loss and share 0), class probabilities or a mixed pair ``(a, b, lam)``.
        epsilon: how much of the target is spread evenly over all classes: a number, one per sample or per position.
        weight: (K), a weight per class, which multiplies that class's term.
        by_label: the weight of a label multiplies all terms of its target instead.
        checks: through which probabilities on an accelerator are looked at; None: they are not.
    """
    target = checked_target(logits, targets, weight, checks)
    if by_label and weight is not None:
        target, weight = target.emphasised(weight), None
    if isinstance(epsilon, Tensor) or epsilon:
        target = target.smoothed(epsilon)
    return position_losses(logits, target, weight), target.share


def checked_target(
    logits: Tensor, targets: Targets, weight: Tensor | None = None, checks: ValueChecks | None = None
) -> SoftTarget:
    """The targets in parts; wrong shapes raise, and wrong values: on a CPU at once, elsewhere through ``checks``."""
    check_shapes(logits, targets, weight=weight)
    if not torch.compiler.is_compiling():
        if logits.device.type == "cpu":
            targets = check_targets(targets, logits.shape[1], IGNORE_INDEX)
        elif checks is not None and isinstance(targets, Tensor) and targets.is_floating_point():
            checks.settle()
            check_probabilities("targets", targets, checks)
    return label_target(logits, targets, IGNORE_INDEX, weight)


def label_weights(targets: Targets, share: Tensor, weight: Tensor | None) -> Tensor:
    """What a term that compares whole distributions counts at every position, (B, d1, ...).

    That is its ``share`` in a mean, but for class probabilities, which share alike, the mean weight of their classes.
    """
    if weight is None or not (isinstance(targets, Tensor) and targets.is_floating_point()):
        return share
    return weighted(targets, weight).sum(1)


def softened_divergence(logits: Tensor, teacher_logits: Tensor, temperature: float) -> Tensor:
    """``KL(softmax(teacher / T) || softmax(student / T))`` of every position, (B, d1, ...); the teacher is fixed."""
    dtype = accumulation_dtype(logits.dtype)
    student = F.log_softmax(logits.to(dtype) / temperature, 1)
    teacher = F.log_softmax(teacher_logits.detach().to(logits.device, dtype) / temperature, 1)
    return F.kl_div(student, teacher, reduction="none", log_target=True).sum(1)


def where_distilled(value: float, distilled: Tensor | None, logits: Tensor) -> float | Tensor:
    """``value`` at the positions where ``distilled``, (B) or (B, d1, ...), is true or None, and 0 elsewhere."""
    mask = distilled_mask(distilled, logits)
    return value if mask is None else value * mask.to(accumulation_dtype(logits.dtype))


def check_given(name: str, given: Tensor | None, logits: Tensor, what: str) -> Tensor:
    """``given``, logits that the caller has to hand over beside those of the student."""
    if given is None:
        raise PskdError(f"{name} is missing: call with {name}=..., {what}")
    if given.shape != logits.shape:
        raise PskdError(
            f"{name} has shape {tuple(given.shape)}, but logits have {tuple(logits.shape)}:"
            " both need the same samples and the same classes"
        )
    return given


def with_term(
    method: Method, logits: Tensor, targets: Targets, term: Tensor, distilled: Tensor | None, name: str = "distillation"
) -> Loss:
    """``H(y, p) + term``: the term of every position (B, d1, ...) counts with its label's weight, where distilled."""
    weight = method.weight_at(logits)
    losses, share = label_losses(logits, targets, weight=weight, checks=method._checks)
    term = where_distilled(1.0, distilled, logits) * label_weights(targets, share, weight) * term
    cross_entropy, added = reduced(losses, share, method.reduction), reduced(term, share, method.reduction)
    return Loss(cross_entropy + added, {"cross_entropy": cross_entropy.detach(), name: added.detach()})


def likelihood(logits: Tensor) -> Tensor:
    """The softmax (B, K, ...) in the type that sums are made in."""
    return torch.softmax(logits, 1, accumulation_dtype(logits.dtype))


def squared_distance(logits: Tensor, past: Past) -> Tensor:
    """``mean_j (p_j - past_j)^2`` of every position, (B, d1, ...); 0 where no past is known."""
    p = likelihood(logits)
    return (p - past.averaged_with(p.detach(), 1.0)).square().mean(1)


def ramp_up(progress: float) -> float:
    """From almost 0 at progress 0 to 1 at 1 and beyond: ``exp(-5 (1 - progress)^2)``."""
    return math.exp(-5 * (1 - min(1.0, progress)) ** 2)


def dense_labels(logits: Tensor, targets: Targets) -> Tensor:
    """The targets as class probabilities, shaped like the logits; of an ignored position any."""
    if isinstance(targets, Tensor) and targets.is_floating_point():
        return targets.to(accumulation_dtype(logits.dtype))
    target = label_target(logits, targets, IGNORE_INDEX)
    assert target.classes is not None
    assert target.coefficients is not None
    zeros = torch.zeros_like(logits, dtype=target.coefficients.dtype)
    return zeros.scatter_add_(1, target.classes, target.coefficients)


def own_labels(targets: Targets, distilled: Tensor | None) -> Tensor | None:
    """The class of each sample that may teach; None where there is none, or nobody knows whose image is mixed."""
    if isinstance(targets, Tensor):
        return None if targets.is_floating_point() else targets.long()
    return None if distilled is None else targets[0].long()
