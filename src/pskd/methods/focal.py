"""The focal loss: what the model is already sure of counts less."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pskd.linear_head import Output
from pskd.methods.base import Loss, Method
from pskd.methods.card import Card
from pskd.settings import NotNegative
from pskd.targets import Targets, weighted
from pskd.tensors import accumulation_dtype


@dataclass(eq=False, repr=False)
class Focal(Method):
    """``L = (1 - p_y)^gamma * H(y, p)``; of a mixed or soft label each class has its own factor.

    Args:
        gamma: at least 0; 0 is plain cross-entropy. The paper: 2, with a weight of 0.25 for the objects' class, which
            ``weight`` can give; for calibration others take 3.

    Where ``distilled`` is false, gamma is 0.

    Cost: none to speak of. Use it as a baseline for calibration, and where easy samples outnumber the hard ones.

    Reference: Lin, Goyal, Girshick, He, Dollar: Focal Loss for Dense Object Detection, ICCV 2017.
    """

    name = "focal"
    card = Card("focal loss")
    takes_weight = True

    gamma: NotNegative = 2.0

    def loss(self, output: Output, targets: Targets, *, distilled: Tensor | None = None) -> Loss:
        batch = self.door(output, targets, distilled)
        gamma = batch.where_distilled(self.gamma)
        gamma = gamma[:, None] if isinstance(gamma, Tensor) else gamma
        log_p, target = batch.logits.log_softmax(1, accumulation_dtype(batch.logits.dtype)), batch.target
        if target.classes is None or target.coefficients is None:
            shares = weighted(target.probabilities(), batch.weight)
        else:
            log_p, shares = log_p.gather(1, target.classes), target.coefficients
            shares = shares if batch.weight is None else shares * batch.weight.to(shares.dtype)[target.classes]
        if batch.masked:  # a class without a share has no part in it, whatever its logit
            log_p = log_p.masked_fill(shares == 0, 0)
        return self.reduced(batch, {"focal": (shares * focal_terms(log_p, gamma)).sum(1)})


def focal_terms(log_p: Tensor, gamma: float | Tensor) -> Tensor:
    """``-(1 - p)^gamma * log p`` of log-probabilities."""
    return -((1 - log_p.exp()).clamp_min(torch.finfo(log_p.dtype).tiny) ** gamma) * log_p
