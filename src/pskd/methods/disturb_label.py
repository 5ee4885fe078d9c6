"""DisturbLabel: a part of the labels is wrong on purpose, others in every epoch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pskd.errors import PskdError
from pskd.linear_head import LinearHead, Output
from pskd.methods.base import Loss, Method
from pskd.methods.card import Card
from pskd.random import uniform
from pskd.settings import Count, Share
from pskd.targets import IGNORE_INDEX, Targets
from pskd.tensors import to_device


@dataclass(eq=False, repr=False)
class DisturbLabel(Method):
    """``L = H(y', p)``; with probability ``rate`` y' is drawn from all K classes alike, else it is the label y.

    Args:
        epochs: the length of the training.
        rate: the part of the labels that is drawn anew. The paper looks at 0.1, 0.2 and more; re-implementations
            have 0.1 and 0.2.
        seed: of the run.

    A drawn label is a pure function of (seed, epoch, sample): call with ``index=``, one per label. Both labels of a
    mixed pair are drawn, each for itself; class probabilities stay as they are. Where ``distilled`` is false, nothing
    is drawn.

    Cost: none to speak of. Use it as a baseline: in expectation it is label smoothing.

    Reference: Xie, Wang, Wei, Wang, Tian: DisturbLabel: Regularizing CNN on the Loss Layer, CVPR 2016.
    """

    name = "disturb_label"
    card = Card("DisturbLabel")
    takes_weight = True
    needs = frozenset({"index"})

    epochs: Count
    rate: Share = 0.1
    seed: int = field(default=0, kw_only=True)

    def loss(
        self, output: Output, targets: Targets, *, index: Tensor | None = None, distilled: Tensor | None = None
    ) -> Loss:
        logits, epoch = output.logits() if isinstance(output, LinearHead) else output, self.epoch
        if index is None:
            raise PskdError("index is missing: call with index=..., the numbers of these training samples")
        if isinstance(targets, tuple):
            first = self.disturbed(targets[0], index, logits, epoch, distilled)
            second = self.disturbed(targets[1], index, logits, epoch, distilled, which=1)
            targets = first, second, targets[2]
        elif not targets.is_floating_point():
            targets = self.disturbed(targets, index, logits, epoch, distilled)
        batch = self.door(logits, targets, distilled)
        return self.reduced(batch, {"cross_entropy": batch.cross_entropy(batch.target)})

    def disturbed(
        self, labels: Tensor, index: Tensor, logits: Tensor, epoch: int, distilled: Tensor | None, which: int = 0
    ) -> Tensor:
        """The labels (B, d1, ...) of this epoch; none becomes a masked class."""
        index = to_device(index, labels.device)
        numbers = uniform(
            index.flatten(), seed=self.seed, epoch=epoch, stream=f"disturbed label {which}", draws=2
        ).view(*index.shape, 2)
        drawn = (numbers[..., 1] * logits.shape[1]).long()
        masked = logits.detach().gather(1, drawn.unsqueeze(1)).squeeze(1) == -math.inf
        changed = (numbers[..., 0] < self.rate) & (labels != IGNORE_INDEX) & ~masked
        if distilled is not None:
            changed &= distilled.reshape(-1, *[1] * (labels.ndim - distilled.ndim)) != 0
        return torch.where(changed, drawn, labels.long())
