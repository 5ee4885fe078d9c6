"""Plain cross-entropy with the labels as they are."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from pskd.linear_head import Output
from pskd.methods.base import Loss, Method, mean_loss
from pskd.methods.distilling import label_losses
from pskd.targets import Targets


class Hard(Method):
    """``L = H(y, p)``: the baseline of every table.

    Settings: none. Cost: none. Use it to see what the other methods add.
    """

    name = "hard"
    plain = True
    takes_heads = True

    def loss(self, output: Output, targets: Targets, *, distilled: Tensor | None = None) -> Loss:
        total = mean_loss(output, targets, None, lambda logits, labels, *_: label_losses(logits, labels))
        return Loss(total, {"cross_entropy": total.detach()})


def hard_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Plain cross-entropy of logits (B, K) with class indices (B)."""
    y = F.one_hot(labels, logits.shape[1]).to(logits.dtype)
    log_p = logits.log_softmax(1)
    return -(y * log_p).sum(1).mean()
