"""Max suppression: the largest logit is held down, whether it is the label's or not."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from pskd.linear_head import Output
from pskd.methods.base import Loss, Method
from pskd.methods.card import Card
from pskd.methods.distilling import with_term
from pskd.settings import Count, NotNegative
from pskd.targets import Targets
from pskd.tensors import accumulation_dtype


@dataclass(eq=False, repr=False)
class MaxSup(Method):
    """``L = H(y, p) + alpha_t * (max_j z_j - mean_j z_j)``, alpha_t growing linearly from ``alpha`` to ``last``.

    Args:
        epochs: the length of the training.
        alpha: in the first epoch. The authors' code: 0.1.
        last: in the last epoch. The authors' code: 0.2, for convolutional networks one step short of it.

    Logits of -inf are masked classes and left out of the mean. Where ``distilled`` is false, only ``H(y, p)`` counts.

    Cost: none to speak of. Use it where label smoothing helps, but features are to be used for other tasks later.

    Reference: Zhou, Li, Cheng, Yan, Dong, Fritz, Keuper: MaxSup: Overcoming Representation Collapse in Label Smoothing,
    2025.
    """

    name = "maxsup"
    card = Card("MaxSup", logs=("alpha_t",))
    takes_weight = True

    epochs: Count
    alpha: NotNegative = 0.1
    last: NotNegative = 0.2

    @property
    def alpha_t(self) -> float:
        return self.alpha + (self.last - self.alpha) * self.epoch / max(1, self.epochs - 1)

    def loss(self, output: Output, targets: Targets, *, distilled: Tensor | None = None) -> Loss:
        batch, alpha_t = self.door(output, targets, distilled), self.alpha_t
        return self.reduced(batch, with_term(batch, alpha_t * largest_over_mean(batch.logits), "suppression"))


def largest_over_mean(logits: Tensor) -> Tensor:
    """``max_j z_j - mean_j z_j`` of logits (n, K), (n)."""
    logits = logits.to(accumulation_dtype(logits.dtype))
    masked = logits == -math.inf
    return logits.amax(1) - logits.masked_fill(masked, 0).sum(1) / (~masked).sum(1)
