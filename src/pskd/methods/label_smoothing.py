"""Label smoothing: a part of every label is spread over the classes."""

from __future__ import annotations

from typing import Annotated

import torch.nn.functional as F
from torch import Tensor

from pskd.errors import PskdError
from pskd.linear_head import Output, Part
from pskd.methods.base import ClassWeight, Loss, Method, batch_loss
from pskd.methods.distilling import label_losses, where_distilled
from pskd.names import methods
from pskd.settings import Range, check_arguments
from pskd.targets import Reduction, Targets


@methods.register("label_smoothing")
class LabelSmoothing(Method):
    """``L = H((1 - epsilon) * y + epsilon / K, p)``: a teacher that finds all K classes equally likely.

    Args:
        epsilon: the part that is taken from the label, in [0, 1). The paper: 0.1.
        others_only: spread it over the other classes alone, as fairseq does: ``1 - epsilon`` stays on the label,
            ``epsilon / (K - 1)`` goes to each other class.

    Of a mixed pair ``(a, b, lam)`` both labels are smoothed; where ``distilled`` is false, none is.

    Cost: none to speak of; no forward pass, no memory. Use it as the strongest baseline that is free; it makes
    predictions less confident everywhere, so look at the calibration error too.

    Reference: Szegedy, Vanhoucke, Ioffe, Shlens, Wojna: Rethinking the Inception Architecture for Computer Vision,
    CVPR 2016.
    """

    name = "label_smoothing"
    title = "label smoothing"
    takes_heads = takes_weight = True

    def __init__(
        self,
        epsilon: Annotated[float, Range(ge=0, lt=1)] = 0.1,
        others_only: bool = False,
        *,
        reduction: Reduction = "mean",
        weight: ClassWeight = None,
    ) -> None:
        super().__init__(reduction=reduction, weight=weight)
        check_arguments(LabelSmoothing.__init__, locals())
        self.epsilon, self.others_only = epsilon, others_only

    def loss(self, output: Output, targets: Targets, *, distilled: Tensor | None = None) -> Loss:
        total = batch_loss(output, targets, distilled, self._losses, self.reduction)
        return Loss(total, {"smoothed_cross_entropy": total.detach()})

    def _losses(
        self, logits: Tensor, targets: Targets, distilled: Tensor | None, part: Part | None
    ) -> tuple[Tensor, Tensor]:
        epsilon = self.epsilon
        if self.others_only:
            # What this spreads over all classes returns epsilon / (K - 1) to the label, so more is taken from it.
            others = logits.shape[1] - 1
            if others < 1:
                raise PskdError(f"others_only needs 2 classes or more, but logits are {tuple(logits.shape)}")
            epsilon *= (others + 1) / others
        taken = where_distilled(epsilon, distilled, logits)
        return label_losses(logits, targets, taken, self.weight_at(logits), checks=self._checks)


def label_smoothing_loss(logits: Tensor, labels: Tensor, epsilon: float = 0.1, others_only: bool = False) -> Tensor:
    """Cross-entropy of logits (B, K) with smoothed class indices (B)."""
    num_classes = logits.shape[1]
    y = F.one_hot(labels, num_classes).to(logits.dtype)
    spread = (1 - y) / (num_classes - 1) if others_only else 1 / num_classes
    q = (1 - epsilon) * y + epsilon * spread
    log_p = logits.log_softmax(1)
    return -(q * log_p).sum(1).mean()
