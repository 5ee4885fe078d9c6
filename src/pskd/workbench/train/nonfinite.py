"""What happens when a loss is NaN or infinite: the run stops, or the step is skipped."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pskd.checks import ValueChecks
from pskd.workbench.runs.group import Group
from pskd.workbench.train.state import TrainingState

MOST_SKIPS = 20  # steps in a row, after which the run stops


class NonFinite:
    """The policy ``train.on_nonfinite``.

    Args:
        policy: "stop" or "skip".
        last_checkpoint: describes the last checkpoint, for the message.
    """

    def __init__(self, policy: str, state: TrainingState, group: Group, last_checkpoint: Callable[[], str]) -> None:
        self.skips = policy == "skip"
        self.state, self.group, self.last_checkpoint = state, group, last_checkpoint
        self._checks = ValueChecks()
        self._buffers: list[Tensor] = []

    def before_step(self) -> None:
        """Copy the batch statistics: a NaN changes them before it reaches the loss."""
        if self.skips:
            self._buffers = [buffer.clone() for buffer in self.state.model.buffers()]

    def is_finite(self, loss: Tensor, lr: float) -> bool:
        """Whether the step may go on. To stop, nothing waits for the device; to skip, all processes agree at once."""
        self._checks.settle()
        bad = ~torch.isfinite(loss.detach())
        last = self.state.skips_in_a_row == MOST_SKIPS
        if not self.skips or last:
            where = f"epoch {self.state.epoch + 1}, step {self.state.step + 1}, learning rate {lr:g}"
            times = f", {MOST_SKIPS} times in a row" if last else ""
            self._checks.require_none(
                bad,
                lambda _: (
                    f"the loss is not finite in {where}{times}; {self.last_checkpoint()}: lower optim.lr, or set"
                    " train.clip_norm"
                ),
            )
            return True
        return not self.group.maximum(int(bad))

    def skip(self, samples: int) -> None:
        """Leave out a step of so many samples."""
        self.state.skipped += samples
        self.state.skips_in_a_row += 1
        for buffer, before in zip(self.state.model.buffers(), self._buffers, strict=True):
            buffer.copy_(before)
