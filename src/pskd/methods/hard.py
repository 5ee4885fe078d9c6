"""Plain cross-entropy with the labels as they are."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pskd.methods.base import Loss, Method
from pskd.targets import Labels, soft_cross_entropy


class Hard(Method):
    """``L = H(y, p)``: the baseline of every table.

    Settings: none. Cost: none. Use it to see what the other methods add.
    """

    name = "hard"

    def loss(self, logits: Tensor, targets: Labels, *, distilled: Tensor | None = None, **needs: Any) -> Loss:
        total = soft_cross_entropy(logits, targets)
        return Loss(total, {"cross_entropy": total.detach()})
