"""alpha="auto", ours: the past is trusted as far as the model fits its training labels."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pskd.door import Batch
from pskd.methods.ramp import Ramp
from pskd.schedules import Schedule
from pskd.tensors import several_processes

LONG = 100  # epochs from which on m is taken as it is


class AutoAlpha(Ramp):
    """``alpha_t = m^k * schedule(t / T)``, where m is the mean that the model gave to its labels in the epoch before.

    ``k = max(1, 100 / epochs)``, so that short trainings are left alone. With steps, m is the mean so far and k is 1.
    alpha_t is a tensor of the device that trains, so that nothing waits for it, and the same in all processes.
    """

    def __init__(self, schedule: Schedule, length: int, unit: str, device: torch.device) -> None:
        super().__init__(1.0, schedule, length, unit, device)
        self.power = max(1.0, LONG / length) if unit == "epoch" else 1.0
        self._mean, self._sums = torch.zeros((), device=device), torch.zeros(2, device=device)
        self._step: Tensor | None = None  # what labels were given in this step, and how many there were

    def start(self, place: int, *, again: bool = False) -> None:
        if not again:
            self._mean = self._sums[0] / self._sums[1].clamp_min(1)
            if self.unit == "epoch":
                self._sums = torch.zeros_like(self._sums)
        self.value = self._mean**self.power * self.at(place)

    def observe(self, batch: Batch) -> None:
        """Learn from a part of a step."""
        given = batch.target.likelihood(batch.log_p)
        counts = torch.ones_like(given) if batch.valid is None else batch.valid.to(given.dtype)
        sums = torch.stack(((given.nan_to_num() * counts).sum(), counts.sum()))
        self._step = sums if self._step is None else self._step + sums

    def end_step(self) -> None:
        """All parts of a step were seen. Every process has to come here as often as the others."""
        added = torch.zeros_like(self._sums) if self._step is None else self._step
        self._step = None
        if several_processes():
            dist.all_reduce(added)
        self._sums = self._sums.to(added, non_blocking=True) + added

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "learnt": torch.cat((self._mean[None].to(self._sums), self._sums))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        learnt = state.get("learnt", torch.zeros(3))
        self._mean, self._sums = learnt[0].clone(), learnt[1:].clone()

    def tell_change(self, state: dict[str, Any], place: int | None) -> None:
        """What a change of length makes of alpha is not known beforehand."""
