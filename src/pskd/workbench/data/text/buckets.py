"""Batches of about as many tokens each: the same number in every epoch, their content and order shuffled."""

from __future__ import annotations

import torch
from torch import Tensor

from pskd.random import epoch_permutation

_SOURCE_STEP = 2  # source lengths that differ by less share a bucket: more shuffling, for little padding


class Buckets:
    """Batches of sentence pairs of nearly equal lengths: a pure function of (seed, epoch).

    Pairs are sorted by target length, then by source length in steps. Only pairs that are equal in both are shuffled,
    so the lengths along the order never change, and the cuts between batches are made once.

    Args:
        source: (N) lengths.
        target: (N) lengths.
        max_tokens: of a batch, padding too, of the longer one of its two sides; a pair that is longer stands alone.
    """

    def __init__(self, source: Tensor, target: Tensor, max_tokens: int) -> None:
        step = -(-source // _SOURCE_STEP)
        most = int(step.max())
        # Source lengths rise and fall in turn, so they are similar where one target length ends and the next begins.
        self._key = target * (most + 1) + torch.where(target % 2 == 0, step, most - step)
        longer = torch.maximum(target, step * _SOURCE_STEP)[self._key.argsort(stable=True)]
        self._sizes: list[int] = []
        start = 0
        while start < len(longer):
            ahead = longer[start : start + max_tokens // int(longer[start]) + 1].cummax(0).values
            fitting = int((ahead * torch.arange(1, len(ahead) + 1) <= max_tokens).sum())
            self._sizes.append(max(1, fitting))
            start += self._sizes[-1]

    def __len__(self) -> int:
        return len(self._sizes)

    def batches(self, seed: int, epoch: int) -> list[Tensor]:
        """The pairs of every batch of an epoch."""
        random = epoch_permutation(len(self._key), seed, epoch)
        order = random[self._key[random].argsort(stable=True)]
        batches = torch.split(order, self._sizes)
        return [batches[which] for which in epoch_permutation(len(batches), seed, epoch).tolist()]


def padding_share(batches: list[Tensor], *sides: Tensor) -> float:
    """The share of padding in all tokens of the batches, over the sides' lengths (N)."""
    real = sum(int(side.sum()) for side in sides)
    whole = sum(len(batch) * int(side[batch].max()) for batch in batches for side in sides)
    return 1 - real / whole
