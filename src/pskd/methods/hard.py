"""Plain cross-entropy with the labels as they are."""

from __future__ import annotations

from torch import Tensor

from pskd.linear_head import Output
from pskd.methods.base import Loss, Method
from pskd.methods.card import Card
from pskd.targets import Targets


class Hard(Method):
    """``L = H(y, p)``: the baseline of every table.

    Settings: none. Cost: none. Use it to see what the other methods add.
    """

    name = "hard"
    card = Card("plain cross-entropy", plain=True)
    takes_heads = takes_weight = True

    def loss(self, output: Output, targets: Targets, *, distilled: Tensor | None = None) -> Loss:
        return self.batch_loss(
            output, targets, None, lambda batch: {"cross_entropy": batch.cross_entropy(batch.target)}
        )
