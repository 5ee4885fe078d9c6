"""The focal loss: what the model is already sure of counts less."""

from __future__ import annotations

import torch
from torch import Tensor

from pskd.fused import weighted
from pskd.linear_head import Output
from pskd.methods.base import ClassWeight, Loss, Method, whole_logits
from pskd.methods.distilling import checked_target, dense_labels, where_distilled
from pskd.names import methods
from pskd.settings import NotNegative, check_arguments
from pskd.targets import Reduction, Targets, reduced
from pskd.tensors import accumulation_dtype


@methods.register("focal")
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
    title = "focal loss"
    takes_weight = True

    def __init__(self, gamma: NotNegative = 2.0, *, reduction: Reduction = "mean", weight: ClassWeight = None) -> None:
        super().__init__(reduction=reduction, weight=weight)
        check_arguments(Focal.__init__, locals())
        self.gamma = gamma

    def loss(self, output: Output, targets: Targets, *, distilled: Tensor | None = None) -> Loss:
        logits = whole_logits(output)
        weight = self.weight_at(logits)
        target = checked_target(logits, targets, weight)
        gamma = where_distilled(self.gamma, distilled, logits)
        gamma = gamma[:, None] if isinstance(gamma, Tensor) else gamma
        log_p = logits.log_softmax(1, accumulation_dtype(logits.dtype))
        if target.classes is None or target.coefficients is None:
            terms = focal_terms(log_p, gamma) * weighted(dense_labels(logits, targets), weight)
        else:
            terms = focal_terms(log_p.gather(1, target.classes), gamma) * target.coefficients
            terms = terms if weight is None else terms * weight.to(terms.dtype)[target.classes]
        total = reduced(terms.sum(1), target.share, self.reduction)
        return Loss(total, {"focal": total.detach()})


def focal_terms(log_p: Tensor, gamma: float | Tensor) -> Tensor:
    """``-(1 - p)^gamma * log p`` of log-probabilities."""
    return -((1 - log_p.exp()).clamp_min(torch.finfo(log_p.dtype).tiny) ** gamma) * log_p
