"""Memory for batches of images on a CPU."""

from __future__ import annotations

import contextlib
import math
import mmap
import weakref
from collections.abc import Sequence

import torch
from torch import Tensor


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
