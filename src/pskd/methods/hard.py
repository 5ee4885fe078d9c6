"""Plain cross-entropy with the labels as they are."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from pskd.linear_head import Output
from pskd.methods.base import Loss, Method, batch_loss
from pskd.methods.distilling import label_losses
from pskd.names import methods
from pskd.targets import Targets


@methods.register("hard")
class Hard(Method):
    """``L = H(y, p)``: the baseline of every table.

    Settings: none. Cost: none. Use it to see what the other methods add.
    """

    name = "hard"
    title = "plain cross-entropy"
    plain = True
    takes_heads = takes_weight = True

    def loss(self, output: Output, targets: Targets, *, distilled: Tensor | None = None) -> Loss:
        total = batch_loss(output, targets, None, self._losses, self.reduction)
        return Loss(total, {"cross_entropy": total.detach()})

    def _losses(self, logits: Tensor, targets: Targets, *_: Any) -> tuple[Tensor, Tensor]:
        return label_losses(logits, targets, weight=self.weight_at(logits), checks=self._checks)


def hard_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Plain cross-entropy of logits (B, K) with class indices (B)."""
    y = F.one_hot(labels, logits.shape[1]).to(logits.dtype)
    log_p = logits.log_softmax(1)
    return -(y * log_p).sum(1).mean()
