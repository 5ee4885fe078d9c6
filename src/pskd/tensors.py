"""Tensors on a device: constants, transfers, and the type that sums are made in."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@functools.lru_cache(maxsize=256)
def constant(values: tuple[Any, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """The tensor of a (nested) tuple, made once: it is sent to an accelerator without waiting."""
    return to_device(torch.tensor(values, dtype=dtype), device)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on another device, without waiting; on the host, where it may be read at once, it has arrived."""
    return tensor.to(device, non_blocking=device.type != "cpu")


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type that sums over classes are made in: float32, or float64 for float64."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def several_processes() -> bool:
    """Whether this process is one of several that train together."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
