"""What the methods beside PS-KD share: a divergence of softened predictions, other logits of the same samples."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from pskd.door import Batch
from pskd.errors import PskdError


def softened_divergence(logits: Tensor, teacher_logits: Tensor, temperature: float, masked: bool = True) -> Tensor:
    """``KL(softmax(teacher / T) || softmax(student / T))`` of logits (n, K), (n); the teacher is fixed.

    A class that either of the two masks has no part in it; ``masked`` false says that there is none.
    """
    dtype = torch.promote_types(logits.dtype, torch.float32)
    student = F.log_softmax(logits.to(dtype) / temperature, 1)
    teacher = F.log_softmax(teacher_logits.detach().to(logits.device, dtype) / temperature, 1)
    share = teacher.exp()
    if masked:
        out = (student == -math.inf) | (teacher == -math.inf)
        student, teacher, share = (part.masked_fill(out, 0) for part in (student, teacher, share))
    return (share * (teacher - student)).sum(1)


def check_given(name: str, given: Tensor | None, batch: Batch, what: str) -> Tensor:
    """``given``, logits that the caller has to hand over beside those of the student, as (n, K)."""
    if given is None:
        raise PskdError(f"{name} is missing: call with {name}=..., {what}")
    shape = (batch.positions[0], batch.logits.shape[1], *batch.positions[1:])
    if tuple(given.shape) != shape:
        raise PskdError(
            f"{name} has shape {tuple(given.shape)}, but logits have {shape}: both need the same samples and the same"
            " classes"
        )
    return batch.flat(given)


def with_term(batch: Batch, term: Tensor, name: str = "distillation") -> dict[str, Tensor]:
    """``H(y, p)`` and a term (n), which counts with its label's weight, where distilled."""
    return {"cross_entropy": batch.cross_entropy(batch.target), name: batch.counted(term)}


def likelihood(logits: Tensor) -> Tensor:
    """The softmax (n, K) in the type that sums are made in."""
    return torch.softmax(logits, 1, torch.promote_types(logits.dtype, torch.float32))


def ramp_up(progress: float) -> float:
    """From almost 0 at progress 0 to 1 at 1 and beyond: ``exp(-5 (1 - progress)^2)``."""
    return math.exp(-5 * (1 - min(1.0, progress)) ** 2)


def unbiased_momentum(momentum: float, seen: int) -> float:
    """What the nth value ``seen`` leaves of the mean of those before, so that no start value is in it.

    The mean is that of ``m <- momentum * m + (1 - momentum) * value`` from m = 0, divided by ``1 - momentum^n``.
    """
    return momentum * (1 - momentum ** (seen - 1)) / (1 - momentum**seen)
