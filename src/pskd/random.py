"""Random numbers that are a pure function of (seed, epoch, sample): no state, no order, the same on every device.

An ordinary generator hands out its numbers in the order of the calls, so what a sample gets depends on the batch, the
process and everything drawn before. Here each number is a hash of what it belongs to. A resumed run, another number of
processes or of workers therefore sees the very same augmented images, and there is no generator state to save.
"""

from __future__ import annotations

import functools
import hashlib

import torch
from torch import Tensor

from pskd.tensors import constant

# SplitMix64: counter * GOLDEN + key, then a bijective mix in which each input bit flips each output bit half the time.
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64  # as int64; torch's integer product wraps modulo 2**64
_MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
_MIX_2 = 0x94D049BB133111EB - 2**64


def uniform(index: Tensor, *, seed: int, epoch: int, stream: str, draws: int = 1) -> Tensor:
    """Independent uniform numbers in [0, 1), ``draws`` for every sample.

    Args:
        index: (B,) int64, the samples' numbers in their data set.
        seed, epoch: any integers.
        stream: what the numbers are for ("flip", "cutmix", ...): two streams never share a number.
        draws: how many numbers each sample needs.

    Returns:
        (B, draws) float32 on ``index``'s device, multiples of 2**-24, bit for bit the same on all devices.
    """
    bits = index[:, None] * _GOLDEN + constant(_keys(seed, epoch, stream, draws), torch.int64, index.device)
    bits ^= _shift_right(bits, 30)
    bits *= _MIX_1
    bits ^= _shift_right(bits, 27)
    bits *= _MIX_2
    # SplitMix64's last step changes low bits only; the 24 highest are what a float32 can hold.
    return _shift_right(bits, 40).to(torch.float32).mul_(2.0**-24)


def _shift_right(bits: Tensor, by: int) -> Tensor:
    """Logical shift: ``>>`` alone would copy int64's sign bit into the free places."""
    return (bits >> by).bitwise_and_((1 << (64 - by)) - 1)


@functools.lru_cache(maxsize=64)
def _keys(seed: int, epoch: int, stream: str, draws: int) -> tuple[int, ...]:
    """An unrelated starting point, as int64, for each draw; kept, since all batches of an epoch use the same."""
    names = (f"{seed}/{epoch}/{stream}/{draw}" for draw in range(draws))
    digests = (hashlib.blake2b(name.encode(), digest_size=8).digest() for name in names)
    return tuple(int.from_bytes(digest, "little", signed=True) for digest in digests)


def shuffled(index: Tensor, *, seed: int, epoch: int, stream: str) -> Tensor:
    """A random order (B) of the samples ``index`` (B): places in ``index``, each order equally likely."""
    return uniform(index, seed=seed, epoch=epoch, stream=stream).squeeze(1).argsort(stable=True)


def epoch_permutation(count: int, seed: int, epoch: int, host: int = 0) -> Tensor:
    """0..count-1 in the random order of this epoch on this host, (count)."""
    generator = torch.Generator().manual_seed((seed * 1_000_003 + epoch + host * 0x9E3779B97F4A7C15) % 2**63)
    return torch.randperm(count, generator=generator)
