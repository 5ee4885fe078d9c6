"""Every class equally often, however many samples it has: a pure function of (seed, epoch, plan)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pskd.plan import Step
from pskd.random import shuffled


def balance_plan(plan: Sequence[Step], labels: Tensor, seed: int, epoch: int) -> list[Step]:
    """A process's steps of an epoch with its own samples drawn again, so that all of its classes are equally frequent.

    Samples of small classes are repeated, those of large ones left out in turn. All copies of a sample stay in the
    process that the plan gave it to, so two processes never write the same record of a bank.

    Args:
        plan: of the whole epoch, or of the rest that another number of hosts has left.
        labels: (N) classes of all samples.
    """
    own = [part for step in plan for part, real in zip(step.parts, step.real, strict=True) if real]
    if not own:
        return list(plan)
    drawn = draw_evenly(torch.cat(own), labels, seed, epoch)
    parts = iter(torch.split(drawn, [len(part) for part in own]))
    return [
        step._replace(
            parts=tuple(next(parts) if real else part for part, real in zip(step.parts, step.real, strict=True))
        )
        for step in plan
    ]


def draw_evenly(samples: Tensor, labels: Tensor, seed: int, epoch: int) -> Tensor:
    """Draw n of the n ``samples``, in random order: n / classes of each class, each of its samples equally often."""
    classes, of_class, sizes = torch.unique(labels[samples], return_inverse=True, return_counts=True)
    # If n is no multiple of the number of classes, some have one sample more; which ones changes with the epoch.
    quota = torch.full_like(sizes, len(samples) // len(classes))
    quota[shuffled(classes, seed=seed, epoch=epoch, stream="one more")[: len(samples) % len(classes)]] += 1
    order = shuffled(samples, seed=seed, epoch=epoch, stream="balance")
    by_class = samples[order[of_class[order].argsort(stable=True)]]  # class after class, shuffled inside
    first = (sizes.cumsum(0) - sizes).repeat_interleave(quota)
    number = torch.arange(len(samples)) - (quota.cumsum(0) - quota).repeat_interleave(quota)
    drawn = by_class[first + number % sizes.repeat_interleave(quota)]
    return drawn[shuffled(torch.arange(len(drawn)), seed=seed, epoch=epoch, stream="balanced order")]
