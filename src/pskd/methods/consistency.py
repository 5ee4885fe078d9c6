"""What temporal ensembling and mean teacher share: predictions are drawn to those of a memory."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pskd.linear_head import Output
from pskd.memory.base import Memory
from pskd.methods.base import ClassWeight, Loss, whole_logits
from pskd.methods.distilling import own_labels, ramp_up, squared_distance, with_term
from pskd.methods.remembering import Remembering, fitted, taken
from pskd.targets import Reduction, Targets


class Consistency(Remembering):
    """``L = H(y, p) + w_t * mean_j (p_j - q_j)^2``, q from the memory, ``w_t = lam * exp(-5 (1 - t / rampup)^2)``."""

    takes_weight = True

    def __init__(
        self, epochs: int, lam: float, rampup: float, memory: Memory, reduction: Reduction, weight: ClassWeight
    ) -> None:
        super().__init__(epochs, memory, reduction=reduction, weight=weight)
        self.lam, self.rampup = lam, rampup

    @property
    def lam_t(self) -> float:
        """What the distance counts in this epoch."""
        length = self.rampup * self.epochs
        return self.lam * (ramp_up(self.epoch / length) if length else 1.0)

    def logged(self) -> dict[str, float]:
        return {"lam_t": self.lam_t}

    def loss(
        self,
        output: Output,
        targets: Targets,
        *,
        index: Tensor | None = None,
        inputs: Any = None,
        distilled: Tensor | None = None,
    ) -> Loss:
        logits, lam = whole_logits(output), self.lam_t
        step = self.step(logits, index, inputs)
        step.check(None, logits)
        labels = own_labels(targets, None)
        take = taken(logits, labels, distilled)
        past = step.past(None, labels=labels, take=take)
        distance = logits.sum(1) * 0 if past is None else squared_distance(logits, fitted(past, logits, take))
        step.record(None, logits, labels=labels, take=take)
        return with_term(self, logits, targets, lam * distance, distilled, "consistency")
