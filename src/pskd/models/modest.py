"""A model is only built if it fits into memory: asked while its layers are made, before their weights are touched."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from pskd.errors import PskdError
from pskd.space import free_bytes, shown

COPIES = 3  # of each weight at the least: itself, its gradient, and what an optimizer keeps of it
MOST_TENSORS = 50_000  # of one model; the deepest published have some thousands


def too_large(error: Exception) -> bool:
    """Whether torch could not get the memory for one tensor."""
    return any(sign in str(error) for sign in ("allocate memory", "overflow", "Storage size", "out of memory"))


@contextlib.contextmanager
def modest(copies: int = COPIES) -> Iterator[None]:
    """Around the building of a model: one that is too large, or has layers without end, is refused."""
    free, total, count = free_bytes(), 0, 0

    def look(_module: nn.Module, _name: str, weight: nn.Parameter | None) -> None:
        nonlocal total, count
        if weight is None:
            return
        total, count = total + copies * weight.numel() * weight.element_size(), count + 1
        if total > free:
            raise PskdError(
                f"the model needs more than {shown(total)} of memory and there are {shown(free)}: make it smaller"
            )
        if count > MOST_TENSORS:
            raise PskdError(f"the model has more than {MOST_TENSORS:,} weight tensors: make it less deep")

    hook = register_module_parameter_registration_hook(look)
    try:
        yield
    except (RuntimeError, MemoryError, OverflowError, TypeError) as error:
        # One layer alone is larger than the memory, or than what a number of bytes can say.
        if too_large(error):
            asked = re.search(r"tried to allocate (\d+) bytes", str(error))
            needs = f"{shown(int(asked[1]))} of memory" if asked else "more memory than can be counted"
            raise PskdError(
                f"one layer of the model needs {needs} and there are {shown(free)}: make it smaller"
            ) from error
        raise
    finally:
        hook.remove()
