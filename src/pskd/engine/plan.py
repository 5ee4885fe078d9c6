"""The order of the data: a pure function of (seed, epoch), so a resume needs no state of any loader."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Step(NamedTuple):
    """One optimizer step: the samples of each of this process's forward passes, and how many all processes have."""

    parts: tuple[Tensor, ...]
    real: tuple[int, ...]  # how many of each part count; a part that has none holds one sample as padding
    total: int


def epoch_plan(
    num_samples: int, batch_size: int, accumulate: int, seed: int, epoch: int, *, rank: int = 0, world: int = 1
) -> list[Step]:
    """All steps of an epoch. Every process takes the same number of steps and parts, every sample counts once.

    A lone last sample joins the batch before it: batch normalisation cannot train on one.
    """
    order = shuffled(num_samples, seed, epoch)
    starts = list(range(0, num_samples, batch_size))
    if len(starts) > 1 and num_samples - starts[-1] == 1:
        starts.pop()
    steps = []
    for start, end in zip(starts, [*starts[1:], num_samples], strict=True):
        steps.append(split_step(order[start:end], accumulate, rank=rank, world=world))
    return steps


def split_step(batch: Tensor, accumulate: int, *, rank: int = 0, world: int = 1, counts: Tensor | None = None) -> Step:
    """One process's share of a batch; ``counts`` (of all samples) is what each counts for, by default 1."""
    shares = [part[rank::world] for part in batch.tensor_split(accumulate)]
    parts = tuple(share if len(share) else batch[:1] for share in shares)

    def counted(samples: Tensor) -> int:
        return len(samples) if counts is None else int(counts[samples].sum())

    return Step(parts, tuple(counted(share) for share in shares), counted(batch))


def shuffled(count: int, seed: int, epoch: int) -> Tensor:
    """0..count-1 in the random order of this epoch."""
    generator = torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63)
    return torch.randperm(count, generator=generator)
