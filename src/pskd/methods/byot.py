"""Be your own teacher: heads inside the network learn from its end, and help its first stages."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pskd.errors import PskdError
from pskd.linear_head import Output
from pskd.methods.base import ClassWeight, Loss, Method, whole_logits
from pskd.methods.distilling import check_given, label_losses, label_weights, softened_divergence, where_distilled
from pskd.names import methods
from pskd.settings import NotNegative, Positive, Share, check_arguments
from pskd.targets import Reduction, Targets, reduced


@methods.register("byot")
class BYOT(Method):
    """``L = H(y, p) + sum_h ((1 - alpha) H(y, p_h) + alpha T^2 KL(p_T || p_hT) + beta |f_h - f|^2)`` over heads h.

    p and f, the prediction and the features of the network's end, are fixed where they teach.

    Args:
        temperature: T. The authors' later code and a re-implementation: 3.
        alpha: in [0, 1]. A re-implementation: 0.1. The authors' later code: 0.3, without the factor T^2.
        beta: at least 0. A re-implementation: 1e-6 of the sum over 128 samples, which is 1.28e-4 of their mean. The
            authors' later code: 0.03 of the unsquared distance, after a further linear layer, not for the first head.

    That re-implementation also has a factor 1 - alpha on ``H(y, p)``; the authors' code has it as it is here.

    ``head_logits`` are those of the heads, ``head_features`` (B, D) theirs, and last the end's; all are made in the
    student's own forward pass, with gradient. On the command line the heads are put on a network of stages; they are in
    the checkpoints, but not in the saved model. Where ``distilled`` is false, heads learn the label alone.

    Cost: the heads, forward and backward. Use it where the network is deep, or shall also answer from its first stages.

    Reference: Zhang, Song, Gao, Chen, Bao, Ma: Be Your Own Teacher: Improve the Performance of Convolutional Neural
    Networks via Self Distillation, ICCV 2019.
    """

    name = "byot"
    title = "BYOT"
    takes_weight = True
    needs = frozenset({"head_logits", "head_features"})

    def __init__(
        self,
        temperature: Positive = 3.0,
        alpha: Share = 0.1,
        beta: NotNegative = 1.28e-4,
        *,
        reduction: Reduction = "mean",
        weight: ClassWeight = None,
    ) -> None:
        super().__init__(reduction=reduction, weight=weight)
        check_arguments(BYOT.__init__, locals())
        self.temperature, self.alpha, self.beta = temperature, alpha, beta

    def loss(
        self,
        output: Output,
        targets: Targets,
        *,
        head_logits: Sequence[Tensor] | None = None,
        head_features: Sequence[Tensor] | None = None,
        distilled: Tensor | None = None,
    ) -> Loss:
        logits, weight = whole_logits(output), self.weight_at(whole_logits(output))
        if not head_logits:
            raise PskdError("head_logits is missing: call with head_logits=..., one (B, K) for each head")
        losses, share = label_losses(logits, targets, weight=weight)
        counts = label_weights(targets, share, weight)
        alpha = where_distilled(self.alpha, distilled, logits)
        labelled, taught = losses, torch.zeros_like(losses)
        for place, head in enumerate(head_logits):
            own = check_given("head_logits", head, logits, "of each head")
            labelled = labelled + (1 - alpha) * label_losses(own, targets, weight=weight)[0]
            taught = taught + alpha * self.temperature**2 * softened_divergence(own, logits, self.temperature) * counts
            if self.beta and head_features is not None:
                distance = (head_features[place] - head_features[-1].detach()).square().sum(1)
                taught = taught + where_distilled(self.beta, distilled, logits) * distance * counts
        cross_entropy = reduced(labelled, share, self.reduction)
        distillation = reduced(taught, share, self.reduction)
        parts = {"cross_entropy": cross_entropy.detach(), "distillation": distillation.detach()}
        return Loss(cross_entropy + distillation, parts)
