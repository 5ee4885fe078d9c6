"""Checks of values in tensors that never make an accelerator wait."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pskd.errors import PskdError
from pskd.tensors import accumulation_dtype

_ROUNDING = 1e-2  # probabilities that were once bfloat16 sum to 1 up to 0.4%


def at_hand(values: Tensor) -> bool:
    """Whether values may be looked at here and now: on the host, and not while ``torch.compile`` makes a graph."""
    return values.device.type == "cpu" and not torch.compiler.is_compiling()


def outside(values: Tensor, limit: int) -> Tensor | None:
    """True where integers lie outside 0..limit-1; None: nowhere. Values not at hand get a mask."""
    if at_hand(values) and values.numel():
        low, high = torch.aminmax(values)
        if int(low) >= 0 and int(high) < limit:
            return None
    return values.clamp(0, limit - 1) != values


def improper(probs: Tensor) -> tuple[Tensor, Tensor]:
    """True (B, ...) where a row (K) of (B, K, ...) is no distribution, and all sums."""
    sums = probs.detach().sum(1, dtype=accumulation_dtype(probs.dtype))
    return ~(((sums - 1).abs() <= _ROUNDING) & (probs.detach().amin(1) >= -_ROUNDING)), sums


class ValueChecks:
    """Counts of wrong values: on the CPU they are looked at here and now, on an accelerator one call later.

    Reading a number from an accelerator stops the program until all work before it is done. So the count is sent to the
    host on the side, and the next ``settle`` finds it there.
    """

    def __init__(self) -> None:
        self._under_way: list[tuple[Tensor, torch.Event, Callable[[int], str]]] = []

    def require_none(self, wrong: Tensor, message: Callable[[int], str]) -> None:
        """Raise ``message(how many)`` where the mask ``wrong`` is true anywhere; a compiled step is not checked."""
        if torch.compiler.is_compiling():
            return
        if wrong.device.type == "cpu":
            if wrong.any():
                raise PskdError(message(int(wrong.sum())))
            return
        event = torch.Event(wrong.device)
        count = wrong.sum().to("cpu", non_blocking=True)
        event.record()
        self._under_way.append((count, event, message))

    def settle(self) -> None:
        """Raise for what an accelerator has reported since; call it before the next step's checks."""
        while self._under_way:
            count, event, message = self._under_way.pop(0)
            event.synchronize()
            if int(count):
                raise PskdError(f"{message(int(count))} (found in the step before)")
