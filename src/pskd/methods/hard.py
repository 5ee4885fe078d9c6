"""Plain cross-entropy with the labels as they are."""

from __future__ import annotations

from typing import Any

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

    def loss(self, output: Output, targets: Targets, *, distilled: Tensor | None = None, **needs: Any) -> Loss:
        total = mean_loss(output, targets, None, lambda logits, labels, *_: label_losses(logits, labels))
        return Loss(total, {"cross_entropy": total.detach()})
