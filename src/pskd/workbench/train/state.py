"""Where a run is: everything about its progress that a checkpoint has to hold, in one place."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pskd.plan import Stretch


class TrainingState:
    """``step`` optimizer steps of ``epoch`` (both from 0) are done; sums and seconds are those of this epoch so far.

    Args:
        device: where losses are summed up.
    """

    def __init__(self, device: torch.device) -> None:
        self.epoch = self.step = 0
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=device)
        self.part_sums: dict[str, Tensor] = {}  # of the loss's parts by name
        self.skipped = self.skips_in_a_row = 0  # samples of this epoch, and steps
        self.best: dict[str, Any] | None = None  # the best epoch so far, by the validation split
        self.best_sum: str | None = None  # the checksum of its weights; the leader's alone
        self.epoch_seconds: list[float] = []
        self.stretches: tuple[Stretch, ...] = ()  # how this epoch was begun on other numbers of hosts
        self._seconds_before = 0.0  # spent in this epoch by the processes before this one
        self._began = time.monotonic()

    def start_epoch(self) -> None:
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """Spent in this epoch."""
        return self._seconds_before + time.monotonic() - self._began

    def add(self, loss: Tensor, parts: Mapping[str, Tensor], samples: int) -> None:
        """Count a batch whose mean loss, and the means of its parts, these are."""
        self.loss_sum += loss.detach() * samples
        for name, part in parts.items():
            if name not in self.part_sums:
                self.part_sums[name] = torch.zeros_like(self.loss_sum)
            self.part_sums[name] += part.detach() * samples

    def end_epoch(self) -> None:
        """The next epoch begins."""
        self.epoch_seconds.append(self.seconds)
        self.epoch, self.step, self.skipped = self.epoch + 1, 0, 0
        self._seconds_before, self.stretches = 0.0, ()
        self.loss_sum.zero_()
        self.part_sums = {}

    def state_dict(self) -> dict[str, Any]:
        """What all processes share; the sums are each one's own (``sums``)."""
        return {
            "epoch": self.epoch,
            "step": self.step,
            "skipped": self.skipped,
            "skips_in_a_row": self.skips_in_a_row,
            "best": self.best,
            "best_sum": self.best_sum,
            "epoch_seconds": self.epoch_seconds,
            "seconds": self.seconds if self.step else 0.0,
            "stretches": [list(stretch) for stretch in self.stretches],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.epoch, self.step, self.best = state["epoch"], state["step"], state["best"]
        self.best_sum = state.get("best_sum")
        self.skipped, self.skips_in_a_row = state["skipped"], state["skips_in_a_row"]
        self.epoch_seconds, self._seconds_before = list(state["epoch_seconds"]), state["seconds"]
        self.stretches = tuple(Stretch(*stretch) for stretch in state["stretches"])

    def sums(self) -> dict[str, Any]:
        """This process's sums of losses."""
        return {"loss_sum": self.loss_sum, "part_sums": self.part_sums}

    def add_sums(self, sums: Mapping[str, Any]) -> None:
        """Take over a process's sums of before; those of several add up."""
        self.loss_sum += sums["loss_sum"].to(self.loss_sum.device)
        for name, value in sums["part_sums"].items():
            value = value.to(self.loss_sum.device)
            self.part_sums[name] = self.part_sums[name] + value if name in self.part_sums else value.clone()
