"""The order of the data: a pure function of (seed, epoch), so a resume needs no state of any loader.

A host is what torchrun calls a node. Sample i belongs to host i % hosts for good, so its record never travels; each
host shuffles its own samples among its processes. On one host this is the plain global shuffle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pskd.random import epoch_permutation


class Step(NamedTuple):
    """One optimizer step: the samples of each of this process's forward passes, and how many all processes have."""

    parts: tuple[Tensor, ...]
    real: tuple[int, ...]  # how many of each part count; a part that has none holds one sample as padding
    total: int


class Stretch(NamedTuple):
    """A stretch of the epoch that lies behind: it ended before step ``until`` and ran on ``hosts`` hosts."""

    until: int
    hosts: int


def epoch_plan(
    num_samples: int,
    batch_size: int,
    accumulate: int,
    seed: int,
    epoch: int,
    *,
    rank: int = 0,
    world: int = 1,
    host: int = 0,
    hosts: int = 1,
    stretches: Sequence[Stretch] = (),
    smallest: int = 2,
) -> list[Step]:
    """All steps of an epoch. Every process takes the same number of steps and parts, every sample counts once.

    ``rank`` of ``world`` is this process's place on its host. A last batch of less than ``smallest`` samples joins the
    one before it: batch normalisation cannot train on a lone one. Steps of earlier ``stretches``, on another number of
    hosts, are behind us and empty here; what they left is dealt to the hosts of today.
    """
    accumulate = min(accumulate, num_samples)  # on all hosts alike; the others would be empty
    edges = step_edges(num_samples, batch_size, smallest)
    left, behind = None, 0  # None: all samples, which are then never listed for all hosts
    for stretch in stretches:
        orders = [_own(num_samples, left, seed, epoch, each, stretch.hosts) for each in range(stretch.hosts)]
        left = torch.cat([order[_cut(len(order), edges, behind, stretch.until) :] for order in orders]).sort().values
        behind = stretch.until
    order = _own(num_samples, left, seed, epoch, host, hosts)
    if left is None:
        counts = Counter(len(range(each, num_samples, hosts)) for each in range(hosts))
    else:
        counts = Counter(torch.bincount(left % hosts, minlength=hosts).tolist())
    padding = torch.tensor([min(host, num_samples - 1)])
    steps = [Step((padding,) * accumulate, (0,) * accumulate, 0)] * behind
    for step in range(behind, len(edges) - 1):
        start, end = _cut(len(order), edges, behind, step), _cut(len(order), edges, behind, step + 1)
        total = sum(
            many * (_cut(count, edges, behind, step + 1) - _cut(count, edges, behind, step))
            for count, many in counts.items()
        )
        steps.append(split_step(order[start:end], accumulate, rank, world, padding)._replace(total=total))
    return steps


def step_edges(num_samples: int, batch_size: int, smallest: int = 2) -> list[int]:
    """Where the steps of all processes together begin in the order of an epoch, and its end."""
    edges = list(range(0, num_samples, batch_size))
    if len(edges) > 1 and num_samples - edges[-1] < smallest:
        edges.pop()
    return [*edges, num_samples]


def split_step(
    batch: Tensor, accumulate: int, rank: int, world: int, padding: Tensor, counts: Tensor | None = None
) -> Step:
    """One process's share of a batch; ``counts`` (of all samples) is what each counts for, by default 1."""
    shares = [part[rank::world] for part in batch.tensor_split(accumulate)]
    parts = tuple(share if len(share) else padding for share in shares)

    def counted(samples: Tensor) -> int:
        return len(samples) if counts is None else int(counts[samples].sum())

    return Step(parts, tuple(counted(share) for share in shares), counted(batch))


def _own(num_samples: int, left: Tensor | None, seed: int, epoch: int, host: int, hosts: int) -> Tensor:
    """This host's samples of those that are left, in the order of the epoch."""
    if left is None:
        return epoch_permutation(len(range(host, num_samples, hosts)), seed, epoch, host) * hosts + host
    own = left[left % hosts == host]
    return own[epoch_permutation(len(own), seed, epoch, host)]


def _cut(count: int, edges: Sequence[int], behind: int, step: int) -> int:
    """Where step ``step`` begins in ``count`` samples that are spread over the steps from ``behind`` on."""
    first, last = edges[behind], edges[-1]
    return count * (edges[step] - first) // (last - first)
