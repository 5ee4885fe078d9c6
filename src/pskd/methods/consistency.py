"""What temporal ensembling and mean teacher share: predictions are drawn to those of a memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pskd.door import Batch, check_trains
from pskd.linear_head import Output
from pskd.memory.base import Memory
from pskd.methods.base import Loss, Method
from pskd.methods.distilling import likelihood, ramp_up, with_term
from pskd.targets import Past, Targets


class Consistency(Method):
    """``L = H(y, p) + w_t * mean_j (p_j - q_j)^2``, q from the memory, ``w_t = lam * exp(-5 (1 - t / rampup)^2)``."""

    takes_weight = True

    epochs: int
    lam: float
    rampup: float
    memory: Memory

    @property
    def lam_t(self) -> float:
        """What the distance counts in this epoch."""
        length = self.rampup * self.epochs
        return self.lam * (ramp_up(self.epoch / length) if length else 1.0)

    def loss(
        self,
        output: Output,
        targets: Targets,
        *,
        index: Tensor | None = None,
        inputs: Any = None,
        distilled: Tensor | None = None,
    ) -> Loss:
        check_trains(output)
        key, lam = self.memory.key(index=index, inputs=inputs), self.lam_t

        batch = self.door(output, targets, distilled)
        past = self.memory.read(key, batch)
        distance = torch.zeros_like(batch.log_p[:, 0]) if past is None else squared_distance(batch.logits, past)
        self.memory.write(key, batch, self.recorded(batch, past), past)
        return self.reduced(batch, with_term(batch, lam * distance, "consistency"))

    def recorded(self, batch: Batch, past: Past | None) -> Tensor:
        """The log-probabilities (n, K) that the memory is to keep."""
        return batch.log_p


def squared_distance(logits: Tensor, past: Past) -> Tensor:
    """``mean_j (p_j - past_j)^2`` of logits (n, K), (n); 0 where no past is known."""
    p = likelihood(logits)
    return (p - past.averaged_with(p.detach(), 1.0)).square().mean(1)
