"""Tensors on a device: constants, transfers, and the type that sums are made in."""

from __future__ import annotations

import contextlib
import functools
import math
import mmap
import weakref
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@functools.lru_cache(maxsize=256)
def constant(values: tuple[Any, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """The tensor of a (nested) tuple, made once: to make it for every batch would make an accelerator wait."""
    return torch.tensor(values, dtype=dtype, device=device)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on another device, without waiting; on the host, where it may be read at once, it has arrived."""
    return tensor.to(device, non_blocking=device.type != "cpu")


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type that sums over classes are made in: float32, or float64 for float64."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def several_processes() -> bool:
    """Whether this process is one of several that train together."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def cached_parts(images: Tensor, part_bytes: int = 2**20) -> list[slice]:
    """Parts of a batch (B, ...) whose float32 values stay in a processor's cache while several operations run on them.

    Memory is what a CPU waits for on photos: one operation after the other on the whole batch takes four times as
    long. A small batch is one part, and so is any on an accelerator.
    """
    count, each = len(images), 4 * max(1, math.prod(images.shape[1:]))
    if images.device.type != "cpu" or count * each <= 4 * part_bytes:
        return [slice(0, count)]
    step = max(1, part_bytes // each)
    return [slice(start, start + step) for start in range(0, count, step)]


def empty(shape: Sequence[int], device: torch.device) -> Tensor:
    """A float32 tensor of any values. On a CPU a large one is made of large pages where the system has them.

    What has more than 32 MB is new to the process each time, and with pages of 4 kB half of the time that it takes to
    write a batch of photos would be spent on handing them out.
    """
    return Reused().empty(shape, device)


class Reused:
    """Memory of large tensors on a CPU, which is used again when nothing refers to a tensor any more.

    Pages that are new to a process are cleared first, which takes half as long as to write a batch of photos.
    """

    def __init__(self) -> None:
        self._free: list[mmap.mmap] = []

    def empty(self, shape: Sequence[int], device: torch.device) -> Tensor:
        """As the function of this name."""
        size = 4 * math.prod(shape)
        if device.type != "cpu" or size <= 2**25 or not hasattr(mmap, "MADV_HUGEPAGE"):
            return torch.empty(tuple(shape), device=device)
        self._free[:] = [memory for memory in self._free if len(memory) == size]
        memory = self._free.pop() if self._free else _large_pages(size)
        lease = memoryview(memory)  # what the tensor holds
        weakref.finalize(lease, self._free.append, memory).atexit = False
        return torch.frombuffer(lease, dtype=torch.float32).view(tuple(shape))


def _large_pages(size: int) -> mmap.mmap:
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a system without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
