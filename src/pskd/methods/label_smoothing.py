"""Label smoothing: a part of every label is spread over the classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from pskd.door import Batch
from pskd.errors import PskdError
from pskd.linear_head import Output
from pskd.methods.base import Loss, Method
from pskd.methods.card import Card
from pskd.settings import Range
from pskd.targets import Targets


@dataclass(eq=False, repr=False)
class LabelSmoothing(Method):
    """``L = H((1 - epsilon) * y + epsilon / K, p)``: a teacher that finds all K classes equally likely.

    Args:
        epsilon: the part that is taken from the label, in [0, 1). The paper: 0.1.
        others_only: spread it over the other classes alone, as fairseq does: ``1 - epsilon`` stays on the label,
            ``epsilon / (K - 1)`` goes to each other class.

    Of a mixed pair ``(a, b, lam)`` both labels are smoothed; where ``distilled`` is false, none is.

    Cost: none to speak of; no forward pass, no memory. Use it as the strongest baseline that is free; it makes
    predictions less confident everywhere, so look at the calibration error too.

    Reference: Szegedy, Vanhoucke, Ioffe, Shlens, Wojna: Rethinking the Inception Architecture for Computer Vision,
    CVPR 2016.
    """

    name = "label_smoothing"
    card = Card("label smoothing")
    takes_heads = takes_weight = True

    epsilon: Annotated[float, Range(ge=0, lt=1)] = 0.1
    others_only: bool = False

    def loss(self, output: Output, targets: Targets, *, distilled: Tensor | None = None) -> Loss:
        def terms(batch: Batch) -> dict[str, Tensor]:
            epsilon = self._taken_from_label(batch.logits.shape[1])
            return {
                "smoothed_cross_entropy": batch.cross_entropy(batch.target.smoothed(batch.where_distilled(epsilon)))
            }

        return self.batch_loss(output, targets, distilled, terms)

    def _taken_from_label(self, num_classes: int) -> float:
        """What is spread over all classes; where the label gets none, more, since it returns epsilon / (K - 1)."""
        if not self.others_only:
            return self.epsilon
        if num_classes < 2:
            raise PskdError(f"others_only needs 2 classes or more, but logits have {num_classes}")
        return self.epsilon * num_classes / (num_classes - 1)
