"""Online label smoothing: each class's label becomes what the model thought of the class in the epoch before."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pskd.errors import PskdError
from pskd.linear_head import Output
from pskd.methods.base import ClassWeight, Loss, whole_logits
from pskd.methods.distilling import checked_target, dense_labels, likelihood, own_labels, where_distilled
from pskd.methods.remembering import Paced, check_trains, taken
from pskd.names import methods
from pskd.settings import Count, Share, check_arguments
from pskd.targets import Past, Reduction, Targets, position_losses, reduced
from pskd.tensors import accumulation_dtype, several_processes


@methods.register("ols")
class OLS(Paced):
    """``L = H((1 - alpha) * y + alpha * S_y, p)``; S_c is the mean p of class c's samples in the epoch before.

    Only samples that were classified right enter the mean. In the first epoch, and for a class without any, S_c is
    uniform, as in the authors' code.

    Args:
        epochs: the length of the training.
        num_classes: K, classes of the model.
        alpha: in [0, 1]. The paper: 0.5.

    Of a mixed pair or a soft label, S is mixed as its classes are, and only samples that are known to be plain
    (``distilled``) enter the means. Where ``distilled`` is false, the label alone counts.

    Cost: one K x K matrix, no row per sample and no forward pass; several processes add up their sums in every step.
    Use it instead of label smoothing where some classes are alike.

    Reference: Zhang, Jiang, Hou, Wei, Han, Li, Cheng: Delving Deep into Label Smoothing, IEEE TIP 2021.
    """

    name = "ols"
    title = "OLS"
    shares_mix = True
    takes_weight = True

    def __init__(
        self,
        epochs: Count,
        num_classes: Count,
        alpha: Share = 0.5,
        *,
        reduction: Reduction = "mean",
        weight: ClassWeight = None,
    ) -> None:
        super().__init__(reduction=reduction, weight=weight)
        check_arguments(OLS.__init__, locals())
        self.epochs, self.num_classes, self.alpha = epochs, num_classes, alpha
        self._sums = torch.zeros(num_classes, num_classes + 1)  # of this epoch: predictions, and how many there were
        self._labels = torch.full((num_classes, num_classes), 1 / num_classes)

    def begin(self, epoch: int, *, anew: bool) -> None:
        if epoch == self._epoch:
            return
        counts = self._sums[:, -1:]
        mean = self._sums[:, :-1] / counts.clamp_min(1)
        self._labels = torch.where(counts > 0, mean, torch.full_like(mean, 1 / self.num_classes))
        self._sums = torch.zeros_like(self._sums)

    def loss(self, output: Output, targets: Targets, *, distilled: Tensor | None = None) -> Loss:
        logits, _ = whole_logits(output), self.epoch
        check_trains(logits)
        if logits.shape[1] != self.num_classes:
            raise PskdError(f"logits have {logits.shape[1]} classes, but OLS was made for {self.num_classes}")
        weight = self.weight_at(logits)
        target = checked_target(logits, targets, weight)
        past = Past(self._soft_labels(logits, targets))
        target = target.mixed_with(past, where_distilled(self.alpha, distilled, logits))
        self._learn(logits.detach(), own_labels(targets, distilled), distilled)
        total = reduced(position_losses(logits, target, weight), target.share, self.reduction)
        return Loss(total, {"smoothed_cross_entropy": total.detach()})

    def _soft_labels(self, logits: Tensor, targets: Targets) -> Tensor:
        """S_y of every position, shaped like the logits."""
        self._labels = self._labels.to(logits.device, accumulation_dtype(logits.dtype))
        if isinstance(targets, Tensor) and not targets.is_floating_point():
            return self._labels[targets.long().clamp_min(0)].movedim(-1, 1)
        return torch.einsum("bc...,ck->bk...", dense_labels(logits, targets), self._labels)

    def _learn(self, logits: Tensor, labels: Tensor | None, distilled: Tensor | None) -> None:
        """Add the predictions that are right to the sums of their classes."""
        self._sums = self._sums.to(logits.device, accumulation_dtype(logits.dtype))
        several = several_processes()
        added = torch.zeros_like(self._sums) if several else self._sums
        if labels is not None:
            right = logits.argmax(1) == labels
            take = taken(logits, labels, distilled)
            right = (right if take is None else right & take.to(right.device)) & logits.isfinite().all(1)
            p = likelihood(logits).movedim(1, -1).reshape(-1, self.num_classes)
            p = torch.cat((p, torch.ones_like(p[:, :1])), 1)
            kept = right.reshape(-1, 1)
            added.index_add_(0, labels.clamp_min(0).flatten(), torch.where(kept, p, torch.zeros_like(p)))
        if several:
            dist.all_reduce(added)
            self._sums += added

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "sums": self._sums, "labels": self._labels}

    def _load(self, state: dict[str, Any]) -> None:
        for name in ("sums", "labels"):
            here = self.state_dict()[name]
            if state[name].shape != here.shape:
                raise PskdError(f"{name}: {tuple(state[name].shape)} in the state, here {tuple(here.shape)} are needed")
        self._sums, self._labels = state["sums"].clone(), state["labels"].clone()
