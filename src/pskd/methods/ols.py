"""Online label smoothing: each class's label becomes what the model thought of the class in the epoch before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pskd.door import Batch, check_trains
from pskd.errors import PskdError
from pskd.linear_head import Output
from pskd.methods.base import Loss, Method
from pskd.methods.card import Card
from pskd.settings import Count, Share
from pskd.targets import Past, Targets, soften
from pskd.tensors import several_processes


@dataclass(eq=False, repr=False)
class OLS(Method):
    """``L = H((1 - alpha) * y + alpha * S_y, p)``; S_c is the mean p of class c's samples in the epoch before.

    Only samples that were classified right enter the mean. In the first epoch, and for a class without any, S_c is
    uniform, as in the authors' code.

    Args:
        epochs: the length of the training.
        num_classes: K, classes of the model.
        alpha: in [0, 1]. The paper: 0.5.

    Of a mixed pair or a soft label, S is mixed as its classes are, and only samples that are known to be plain
    (``distilled``) enter the means. Where ``distilled`` is false, the label alone counts.

    Cost: one K x K matrix, no record per sample and no forward pass; several processes add up their sums in every step.
    Use it instead of label smoothing where some classes are alike.

    Reference: Zhang, Jiang, Hou, Wei, Han, Li, Cheng: Delving Deep into Label Smoothing, IEEE TIP 2021.
    """

    name = "ols"
    card = Card("OLS", shares_mix=True)
    takes_weight = True

    epochs: Count
    num_classes: Count
    alpha: Share = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        count = self.num_classes
        self._sums = torch.zeros(count, count + 1)  # of this epoch: predictions, and how many there were
        self._labels = torch.full((count, count), 1 / count)

    def begin(self, epoch: int, *, again: bool) -> None:
        if again:
            return
        counts = self._sums[:, -1:]
        mean = self._sums[:, :-1] / counts.clamp_min(1)
        self._labels = torch.where(counts > 0, mean, torch.full_like(mean, 1 / self.num_classes))
        self._sums = torch.zeros_like(self._sums)

    def loss(self, output: Output, targets: Targets, *, distilled: Tensor | None = None) -> Loss:
        check_trains(output)
        _ = self.epoch  # has begun
        batch = self.door(output, targets, distilled)
        if batch.logits.shape[1] != self.num_classes:
            raise PskdError(f"logits have {batch.logits.shape[1]} classes, but OLS was made for {self.num_classes}")
        q = soften(batch.target, Past(self._soft_labels(batch), known=batch.valid), self.alpha)
        losses = batch.cross_entropy(q)
        self._learn(batch)
        return self.reduced(batch, {"smoothed_cross_entropy": losses})

    def _soft_labels(self, batch: Batch) -> Tensor:
        """S_y of every position, (n, K)."""
        self._labels = self._labels.to(batch.log_p, non_blocking=True)
        return self._labels[batch.labels] if batch.labels is not None else batch.target.probabilities() @ self._labels

    def _learn(self, batch: Batch) -> None:
        """Add the predictions that are right to the sums of their classes."""
        self._sums = self._sums.to(batch.log_p, non_blocking=True)
        several = several_processes()
        added = torch.zeros_like(self._sums) if several else self._sums
        labels, p = batch.own_labels, batch.log_p.exp()
        if labels is not None:
            right = (p.argmax(1) == labels) & p.isfinite().all(1)
            right = right if batch.valid is None else right & batch.valid
            p = torch.cat((p, torch.ones_like(p[:, :1])), 1)
            added.index_add_(0, labels, torch.where(right[:, None], p, 0))
        if several:
            dist.all_reduce(added)
            self._sums += added

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "sums": self._sums, "labels": self._labels}

    def load_own(self, state: dict[str, Any]) -> None:
        for name in ("sums", "labels"):
            here = self.state_dict()[name]
            if state[name].shape != here.shape:
                raise PskdError(f"{name}: {tuple(state[name].shape)} in the state, here {tuple(here.shape)} are needed")
        self._sums, self._labels = state["sums"].clone(), state["labels"].clone()
