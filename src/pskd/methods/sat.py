"""Self-adaptive training: a running mean of predictions takes the place of the label, and unsure samples count less."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from pskd.linear_head import Output
from pskd.memory.bank import PredictionBank
from pskd.methods.base import ClassWeight, Loss, whole_logits
from pskd.methods.distilling import checked_target, dense_labels, likelihood, own_labels
from pskd.methods.remembering import Banked, taken
from pskd.names import methods
from pskd.settings import Count, Range, Share, check_arguments
from pskd.targets import Past, Reduction, Targets, position_losses, reduced


@methods.register("sat")
class SAT(Banked):
    """``L = sum_i w_i H(t_i, p_i) / sum_i w_i``, with ``t <- m * t + (1 - m) * p`` and ``w = max_j t_j``.

    t starts as the label. Before ``warmup`` it is plain cross-entropy, and t does not move.

    Args:
        epochs: the length of the training.
        momentum: m, in [0, 1). The paper: 0.9.
        warmup: the part of the training before it begins. The paper: 0.3, 60 of 200 epochs.
        memory: where t is kept; call with ``index=``.

    A bank of half precision rounds t once an epoch. With ``reduction`` "sum" and "none" a sample's loss is ``w_i H``.
    Where ``distilled`` is false, the label alone counts, with w = 1, and t stays.

    Cost: one row per sample, no forward pass. Use it where labels are wrong: a model's own mean outvotes them.

    Reference: Huang, Zhang, Zhang: Self-Adaptive Training: beyond Empirical Risk Minimization, NeurIPS 2020.
    """

    name = "sat"
    title = "SAT"

    def __init__(
        self,
        epochs: Count,
        momentum: Annotated[float, Range(ge=0, lt=1)] = 0.9,
        warmup: Share = 0.3,
        *,
        memory: PredictionBank,
        reduction: Reduction = "mean",
        weight: ClassWeight = None,
    ) -> None:
        check_arguments(SAT.__init__, locals())
        super().__init__(epochs, memory, reduction=reduction, weight=weight)
        self.momentum, self.warmup = momentum, warmup

    def loss(
        self, output: Output, targets: Targets, *, index: Tensor | None = None, distilled: Tensor | None = None
    ) -> Loss:
        logits, begun = whole_logits(output), self.epoch >= self.warmup * self.epochs
        step = self.step(logits, index)
        weight = self.weight_at(logits)
        target = checked_target(logits, targets, weight)
        step.check(None, logits)
        losses, share = None, target.share
        if begun:
            labels = own_labels(targets, None)
            take = taken(logits, labels, distilled)
            past = step.past(None, labels=labels, take=take)
            assert past is not None
            before = past.to(logits.device).averaged_with(dense_labels(logits, targets), 1.0)
            mean = torch.lerp(before, likelihood(logits.detach()), 1 - self.momentum)
            step.record(None, mean.log(), labels=labels, take=take)
            sure = mean.amax(1) if take is None else torch.where(take, mean.amax(1), 1.0)
            target = target.mixed_with(Past(mean, known=take), 1.0)
            losses, share = sure * position_losses(logits, target, weight), sure * share
        else:
            losses = position_losses(logits, target, weight)
        total = reduced(losses, share, self.reduction)
        return Loss(total, {"soft_cross_entropy": total.detach()})
