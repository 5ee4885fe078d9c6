"""How far the past is trusted: alpha grows over a training, Eq. 5, or with what has been learnt of its data."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from pskd.errors import PskdError
from pskd.schedules import Schedule
from pskd.tensors import several_processes


class Ramp(NamedTuple):
    """``alpha_t = alpha * schedule(t / length)``, t counted from 1."""

    alpha: float
    schedule: Schedule
    length: int
    unit: str  # "epoch" or "step"

    def at(self, place: int) -> float:
        """alpha in a 0-based epoch or step; after the last one it stays."""
        share = self.schedule(min(1.0, (place + 1) / self.length))
        if not 0 <= share <= 1:
            raise PskdError(f"schedule gives {share} in {self.unit} {place}; allowed is a share of alpha in [0, 1]")
        return self.alpha * share

    def state_dict(self) -> dict[str, Any]:
        return {"length": self.length, "unit": self.unit}

    def check_state(self, state: dict[str, Any]) -> None:
        """Raise where a state was counted in another unit; an older version's says nothing of it."""
        if state.get("unit", self.unit) != self.unit:
            then = state["unit"]
            raise PskdError(f"state: it was counted in {then}s, here it is {self.unit}s; give {then}s=")

    def tell_change(self, state: dict[str, Any], place: int) -> None:
        """Say in a line what becomes of alpha where the training was of another length when its state was saved."""
        if (length := state.get("length", self.length)) != self.length:
            then, now = self._replace(length=length).at(place), self.at(place)
            warnings.warn(
                f"{self.unit}s={self.length}, but {length} when this state was saved: alpha_t was {then:.3g} in"
                f" {self.unit} {place}, is {now:.3g} there now, and goes on to {self.at(self.length):.3g}",
                stacklevel=3,
            )


class Learnt:
    """``m^power``: m is the mean of what a model gave to its labels in the epoch before, 0 in the first one.

    It is a tensor of the device that trains, so that nothing waits for it, and the same in all processes.
    """

    def __init__(self, power: float) -> None:
        self.power = power
        self._mean, self._sums = torch.zeros(()), torch.zeros(2)  # of this epoch: what labels were given; how many
        self._step: Tensor | None = None  # the same of this step

    def share(self) -> Tensor:
        return self._mean**self.power

    def start_step(self) -> None:
        self._step = None  # that of a batch that was refused

    def add(self, given: Tensor, take: Tensor | None) -> None:
        """What labels were given, (B, d1, ...); those where ``take`` is false do not count."""
        counts = torch.ones_like(given) if take is None else take.to(given.dtype)
        found = torch.stack(((given.nan_to_num() * counts).sum(), counts.sum()))
        self._step = found if self._step is None else self._step + found

    def end_step(self) -> None:
        """All parts of a step were added. Every process has to come here as often as the others."""
        added = self._sums.new_zeros(2) if self._step is None else self._step
        if several_processes():
            dist.all_reduce(added)
        self._sums = self._sums.to(added) + added

    def renew(self) -> None:
        """m from what was added since it was last forgotten."""
        self._mean = self._sums[0] / self._sums[1].clamp_min(1)

    def forget(self) -> None:
        self._sums = torch.zeros_like(self._sums)

    def state(self) -> Tensor:
        """(3), to save."""
        return torch.cat((self._mean[None].to(self._sums), self._sums))

    def load(self, state: Tensor) -> None:
        self._mean, self._sums = state[0].clone(), state[1:].clone()
