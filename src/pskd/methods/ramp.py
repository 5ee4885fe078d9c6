"""How far the past is trusted, Eq. 5: alpha grows over a training, which is counted in epochs or in steps."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

from pskd.errors import PskdError
from pskd.schedules import Schedule


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
