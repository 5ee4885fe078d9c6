"""Self-adaptive training: a running mean of predictions takes the place of the label, and unsure samples count less."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor

from pskd.door import check_trains
from pskd.linear_head import Output
from pskd.memory.bank import PredictionBank
from pskd.methods.base import Loss, Method
from pskd.methods.card import Card
from pskd.settings import Count, Range, Share
from pskd.targets import Past, Targets, soften


@dataclass(eq=False, repr=False)
class SAT(Method):
    """``L = sum_i w_i H(t_i, p_i) / sum_i w_i``, with ``t <- m * t + (1 - m) * p`` and ``w = max_j t_j``.

    t starts as the label. Before ``warmup`` it is plain cross-entropy, and t does not move.

    Args:
        epochs: the length of the training.
        momentum: m, in [0, 1). The paper: 0.9.
        warmup: the part of the training before it begins. The paper: 0.3, 60 of 200 epochs.
        memory: where t is kept; call with ``index=``.

    A bank of half precision rounds t once an epoch. With ``reduction`` "sum" and "none" a sample's loss is ``w_i H``.
    Where ``distilled`` is false, the label alone counts, with w = 1, and t stays.

    Cost: one record per sample, no forward pass. Use it where labels are wrong: a model's own mean outvotes them.

    Reference: Huang, Zhang, Zhang: Self-Adaptive Training: beyond Empirical Risk Minimization, NeurIPS 2020.
    """

    name = "sat"
    card = Card("SAT", shares_mix=True, memory={"max_age": None})
    takes_weight = True

    epochs: Count
    momentum: Annotated[float, Range(ge=0, lt=1)] = 0.9
    warmup: Share = 0.3
    memory: PredictionBank = field(kw_only=True)

    def loss(
        self, output: Output, targets: Targets, *, index: Tensor | None = None, distilled: Tensor | None = None
    ) -> Loss:
        check_trains(output)
        key, begun = self.memory.key(index=index), self.epoch >= self.warmup * self.epochs
        batch = self.door(output, targets, distilled)
        if not begun:
            return self.reduced(batch, {"soft_cross_entropy": batch.cross_entropy(batch.target)})
        past = self.memory.read(key, batch)
        before = past.averaged_with(batch.target.probabilities(), 1.0)  # the label, where there is none
        t = torch.lerp(before, batch.log_p.exp(), 1 - self.momentum)
        sure = t.amax(1) if batch.valid is None else torch.where(batch.valid, t.amax(1), 1.0)
        losses = sure * batch.cross_entropy(soften(batch.target, Past(t, known=batch.valid), 1.0))
        self.memory.write(key, batch, t.log(), past)
        return self.reduced(batch, {"soft_cross_entropy": losses}, sure if batch.share is None else sure * batch.share)
