"""What a loss of NaN or infinity does: stop the run, or skip the step."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from pskd.checks import ValueChecks
from pskd.workbench.runs.group import Group
from pskd.workbench.train.state import TrainingState

MOST_SKIPS = 20  # steps in a row; after that there is nothing to hope for


class NonFinite:
    """The policy ``train.on_nonfinite``.

    Args:
        policy: "stop" or "skip".
        last_checkpoint: says where the last good state is, for the message.
    """

    def __init__(self, policy: str, state: TrainingState, group: Group, last_checkpoint: Callable[[], str]) -> None:
        self.skips = policy == "skip"
        self.state, self.group, self.last_checkpoint = state, group, last_checkpoint
        self._checks = ValueChecks()
        self._buffers: list[Tensor] = []

    def before_step(self, model: nn.Module) -> None:
        """Keep batch statistics: a NaN goes into them before it reaches the loss."""
        if self.skips:
            self._buffers = [buffer.clone() for buffer in model.buffers()]

    def is_finite(self, loss: Tensor, lr: float) -> bool:
        """Whether the step can go on. Stopping needs no waiting for the device, skipping needs all to agree at once."""
        self._checks.settle()
        bad = ~torch.isfinite(loss.detach())
        if not self.skips or self.state.skips_in_a_row == MOST_SKIPS:
            self._checks.require_none(bad, self._message(lr))
            return True
        return not self.group.maximum(int(bad))

    def skip(self, model: nn.Module, samples: int) -> None:
        """Leave a step of so many samples out."""
        self.state.skipped += samples
        self.state.skips_in_a_row += 1
        for buffer, before in zip(model.buffers(), self._buffers, strict=True):
            buffer.copy_(before)

    def _message(self, lr: float) -> Callable[[int], str]:
        state = self.state
        where = f"epoch {state.epoch + 1}, step {state.step + 1}, learning rate {lr:g}"

        def message(_: int) -> str:
            times = f", {MOST_SKIPS} times in a row" if state.skips_in_a_row == MOST_SKIPS else ""
            advice = f"{self.last_checkpoint()}: lower optim.lr, or set train.clip_norm"
            return f"the loss is not finite in {where}{times}; {advice}"

        return message
