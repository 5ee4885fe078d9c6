"""Constants on a device."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor


@functools.lru_cache(maxsize=256)
def constant(values: tuple[Any, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """The tensor of a (nested) tuple, made once: to make it for every batch would make an accelerator wait."""
    return torch.tensor(values, dtype=dtype, device=device)
