"""How far the past is trusted: alpha grows over a training, Eq. 5 of the paper."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from pskd.errors import PskdError
from pskd.schedules import Schedule


def alpha_at(place: int, length: int, alpha: float, schedule: Schedule) -> float:
    """Eq. 5: ``alpha_t = alpha_T * schedule(t / T)``; the 0-based place is t - 1, and after the last alpha stays."""
    return alpha * schedule(min(1.0, (place + 1) / length))


class Ramp:
    """``value``, alpha_t, in the epochs or steps of a training: a tensor, so that a compiled step stays as it is.

    Args:
        alpha: alpha_T, its value in the end.
        schedule: from the progress t/T in (0, 1] to a share of alpha_T.
        length: T.
        unit: "epoch" or "step".
        device: where the memory is.
    """

    def __init__(self, alpha: float, schedule: Schedule, length: int, unit: str, device: torch.device) -> None:
        self.alpha, self.schedule, self.length, self.unit = alpha, schedule, length, unit
        # Exact where that costs nothing; some devices have no float64.
        self.value = torch.zeros((), dtype=torch.float64 if device.type == "cpu" else torch.float32, device=device)

    def at(self, place: int) -> float:
        """alpha in a 0-based epoch or step."""
        alpha = alpha_at(place, self.length, self.alpha, self.schedule)
        if not 0 <= alpha <= self.alpha:
            share = self.schedule(min(1.0, (place + 1) / self.length))
            raise PskdError(f"schedule gives {share} in {self.unit} {place}; allowed is a share of alpha in [0, 1]")
        return alpha

    def start(self, place: int, *, again: bool = False) -> None:
        """A 0-based epoch or step begins; ``again``: it had begun when its state was saved."""
        self.value.fill_(self.at(place))

    def state_dict(self) -> dict[str, Any]:
        return {"length": self.length, "unit": self.unit}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to take: alpha is a function of the place."""

    def check_state(self, state: dict[str, Any]) -> None:
        """Raise where the state was counted in another unit; an older version's says nothing of it."""
        if state.get("unit", self.unit) != self.unit:
            then = state["unit"]
            raise PskdError(f"state: it was counted in {then}s, here it is {self.unit}s; give {then}s=")

    def tell_change(self, state: dict[str, Any], place: int | None) -> None:
        """Say what becomes of alpha where the training was of another length when its state was saved."""
        length = state.get("length", self.length)
        if length == self.length or place is None:
            return
        then, now = alpha_at(place, length, self.alpha, self.schedule), self.at(place)
        warnings.warn(
            f"{self.unit}s={self.length}, but {length} when this state was saved: alpha_t was {then:.3g} in"
            f" {self.unit} {place}, is {now:.3g} there now, and goes on to {self.at(self.length):.3g}",
            stacklevel=3,
        )
