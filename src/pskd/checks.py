"""Checks of values in tensors that never make an accelerator wait."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from pskd.errors import PskdError
from pskd.tensors import accumulation_dtype, to_device

_ROUNDING = 1e-2  # probabilities that were once bfloat16 sum to 1 up to 0.4%
_nonfinite_allowed = False

Message = Callable[[int], str]  # from how many values are wrong


@contextlib.contextmanager
def allow_nonfinite() -> Iterator[None]:
    """Inside, logits that are not finite are no error: their loss is NaN, and they are not recorded."""
    global _nonfinite_allowed
    before, _nonfinite_allowed = _nonfinite_allowed, True
    try:
        yield
    finally:
        _nonfinite_allowed = before


def nonfinite_is_allowed() -> bool:
    return _nonfinite_allowed


def at_hand(values: Tensor) -> bool:
    """Whether values may be looked at here and now: on the host, and not while ``torch.compile`` makes a graph."""
    return values.device.type == "cpu" and not torch.compiler.is_compiling()


def all_inside(values: Tensor, limit: int) -> bool:
    """Whether whole numbers are seen to lie in 0..limit-1; values that are not at hand are not looked at."""
    if not at_hand(values):
        return False
    if not values.numel():
        return True
    low, high = torch.aminmax(values)
    return int(low) >= 0 and int(high) < limit


def improper(probs: Tensor) -> tuple[Tensor, Tensor]:
    """True (n) where a row of (n, K) is no distribution, and all sums."""
    sums = probs.detach().sum(1, dtype=accumulation_dtype(probs.dtype))
    return ~(((sums - 1).abs() <= _ROUNDING) & (probs.detach().amin(1) >= -_ROUNDING)), sums


class ValueChecks:
    """Counts of wrong values: on the CPU they are looked at here and now, on an accelerator one step later.

    Reading a number from an accelerator stops the program until all work before it is done. So the counts of a step
    are one small tensor, which is sent to the host on the side; the next ``settle`` finds it there.
    """

    when = ""  # what a message says of the time, such as " in epoch 3 (counted from 0)"

    def __init__(self) -> None:
        self._masks: list[tuple[Tensor, Message]] = []  # of this step
        self._sent: list[tuple[Tensor, torch.Event, list[Message]]] = []
        self._in_graphs = torch.zeros((), dtype=torch.int64)  # wrong values in compiled steps
        self.pending = False  # whether there is anything to send or to settle

    def require_none(self, wrong: Tensor, message: Message) -> None:
        """Raise ``message(how many)`` where the mask ``wrong`` (n) is true anywhere."""
        if at_hand(wrong):
            if bool(wrong.any()):
                raise PskdError(message(int(wrong.sum())))
        else:
            self._masks.append((wrong, message))
            self.pending = True

    def send(self) -> None:
        """The step's checks are all made: let their counts travel."""
        if not self._masks:
            return
        masks, messages = zip(*self._masks, strict=True)
        self._masks = []
        device = masks[0].device
        if len({len(mask) for mask in masks}) == 1:
            counts = torch.stack([to_device(mask, device) for mask in masks]).sum(1)
        else:  # the parts of a head are not equally long
            counts = torch.stack([to_device(mask, device).sum() for mask in masks])
        if torch.compiler.is_compiling():
            self._in_graphs = self._in_graphs.to(device) + counts.sum()
            self.pending = False
            return
        found, event = counts.to("cpu", non_blocking=True), torch.Event(device)
        event.record()
        self._sent.append((found, event, list(messages)))

    def settle(self) -> None:
        """Raise for what an accelerator has reported since; call it before the next step's checks."""
        if self._masks:
            self.send()
        while self._sent:
            counts, event, messages = self._sent.pop(0)
            event.synchronize()
            self.pending = bool(self._sent)
            for count, message in zip(counts.tolist(), messages, strict=True):
                if count:
                    raise PskdError(f"{message(count)} (found in the step before)")

    def settle_graphs(self) -> None:
        """Raise for what compiled steps have counted; this waits for the device: once an epoch."""
        found, self._in_graphs = int(self._in_graphs), torch.zeros_like(self._in_graphs)
        if found:
            raise PskdError(
                f"{found} values of compiled steps were wrong (logits not finite, labels or indices out of range, or"
                " samples with other labels than before): run a few steps without torch.compile to see which"
            )
