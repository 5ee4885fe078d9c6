"""Where a training stands: in which of its epochs, or of its steps."""

from __future__ import annotations

import operator
from typing import Any, NoReturn, SupportsIndex

from pskd.errors import PskdError


class Clock:
    """Epochs that begin one after the other; or the steps of a stream, which has none.

    Args:
        length: how many there are.
        unit: "epoch" or "step".
        owner: whose clock it is, for messages.
    """

    def __init__(self, length: int, unit: str = "epoch", owner: str = "method") -> None:
        self.length, self.unit, self.owner = length, unit, owner
        self.last: int | None = None  # the last one that began, here or in the state that was loaded
        self.begun = False

    @property
    def now(self) -> int:
        """The current epoch or step, from 0."""
        if self.last is None or not self.begun:
            self.refuse()
        return self.last

    def refuse(self) -> NoReturn:
        raise PskdError("start_epoch: call start_epoch(epoch) before the first batch of every epoch")

    def check_epoch(self, epoch: SupportsIndex) -> int:
        """The 0-based ``epoch`` as a number, if it can be next: the first is 0, or follows a state that was loaded."""
        epoch, before = _plain_number("start_epoch: epoch", epoch), self.last
        if epoch >= self.length:
            raise PskdError(
                f"start_epoch({epoch}) is past the last epoch: epochs={self.length}, so 0..{self.length - 1}"
            )
        if before is None and epoch != 0:
            raise PskdError(
                f"start_epoch({epoch}) comes first, but no state was loaded: start at 0, or load_state_dict()"
            )
        if before is not None and epoch not in (before, before + 1):
            raise PskdError(
                f"start_epoch({epoch}) cannot follow epoch {before}: go on with {before + 1}, or make a new"
                f" {self.owner}"
            )
        return epoch

    def check_step(self, step: SupportsIndex) -> int:
        """The 0-based ``step`` as a number, if it can be next."""
        step = _plain_number("start_step: step", step)
        if step < (self.last or 0):
            raise PskdError(f"start_step({step}) cannot follow step {self.last}")
        return step

    def begin(self, place: int) -> None:
        self.last, self.begun = place, True

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": -1 if self.last is None else self.last}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue in what was saved or after it."""
        self.last, self.begun = state["epoch"] if state["epoch"] >= 0 else None, False


def _plain_number(name: str, value: SupportsIndex) -> int:
    """A tensor that the caller counts in place, and numpy's numbers, must not get into a state."""
    try:
        return operator.index(value)
    except TypeError as error:
        raise PskdError(f"{name} must be a whole number, got {value!r}") from error
