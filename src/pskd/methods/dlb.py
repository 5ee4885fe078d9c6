"""Self-distillation from the last mini-batch: the model agrees with what it said one step ago, of another view."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pskd.errors import PskdError
from pskd.linear_head import Output
from pskd.methods.base import Loss, whole_logits
from pskd.methods.distilling import check_given, label_losses, own_labels, softened_divergence
from pskd.methods.remembering import Paced, check_trains
from pskd.names import methods
from pskd.settings import Count, NotNegative, Positive, check_arguments
from pskd.targets import Targets


@methods.register("dlb")
class DLB(Paced):
    """``L = H(y, p)`` over this batch and the last one again, plus ``alpha * T^2 * KL(last_T || again_T)``.

    "last" are the logits of the step before, "again" the model's of now for another view of the same images.

    Args:
        epochs: the length of the training.
        temperature: T. The default name of a run in the authors' code, "TP3_0.5", says 3.
        alpha: at least 0. A re-implementation: 1; the second number of that name may be the authors'.

    ``view`` is another view of this batch, which is kept for the next step; there the model has to run on it, with
    gradient::

        again = None if method.last_view is None else model(method.last_view)
        loss = method(model(x), y, view=another_view_of_x, last_logits=again)

    An epoch begins without a last batch; in the authors' code that of the epoch before stays. Only samples that are
    known to be plain are kept: of a batch with mixed labels those that are ``distilled``. Of several processes each has
    a last batch of its own; after a resume within an epoch all begin with that of the first one.

    Cost: a second forward and backward pass, and one batch of images in the checkpoint. The paper halves the batch
    instead, so that a step costs what it did. Use it where steps are cheap and training is short.

    Reference: Shen, Xu, Yang, Li, Guo: Self-Distillation from the Last Mini-Batch for Consistency Regularization,
    CVPR 2022.
    """

    name = "dlb"
    title = "DLB"
    shares_mix = True
    needs = frozenset({"view", "last_logits"})

    def __init__(self, epochs: Count, temperature: Positive = 3.0, alpha: NotNegative = 1.0) -> None:
        super().__init__()
        check_arguments(DLB.__init__, locals())
        self.epochs, self.temperature, self.alpha = epochs, temperature, alpha
        self._last: dict[str, Tensor] = {}  # view, logits and labels

    @property
    def last_view(self) -> Tensor | None:
        """The images that the model has to see again; None: there are none."""
        return self._last.get("view")

    def begin(self, epoch: int, *, anew: bool) -> None:
        if epoch != self._epoch:
            self._last = {}

    def loss(
        self,
        output: Output,
        targets: Targets,
        *,
        view: Tensor | None = None,
        last_logits: Tensor | None = None,
        distilled: Tensor | None = None,
    ) -> Loss:
        logits, _ = whole_logits(output), self.epoch
        check_trains(logits)
        if view is None or len(view) != len(logits):
            raise PskdError("view is missing: call with view=..., another view of each image of this batch")
        losses, share = label_losses(logits, targets)
        total, count, distillation = losses.sum(), share.sum(), None
        if self._last:
            before = self._last["logits"].to(logits.device)
            again = check_given("last_logits", last_logits, before, "the model's for method.last_view")
            losses, share = label_losses(again, self._last["labels"].to(logits.device))
            total, count = total + losses.sum(), count + share.sum()
            divergence = share * softened_divergence(again, before, self.temperature)
            distillation = self.alpha * self.temperature**2 * divergence.sum() / share.sum().clamp_min(1)
        self._keep(logits.detach(), own_labels(targets, distilled), view.detach(), distilled)
        cross_entropy = total / count
        if distillation is None:
            distillation = torch.zeros_like(cross_entropy)
        parts = {"cross_entropy": cross_entropy.detach(), "distillation": distillation.detach()}
        return Loss(cross_entropy + distillation, parts)

    def _keep(self, logits: Tensor, labels: Tensor | None, view: Tensor, distilled: Tensor | None) -> None:
        if labels is None or (distilled is not None and not bool(distilled.any())):
            self._last = {}
            return
        last = {"view": view, "logits": logits, "labels": labels}
        plain = None if distilled is None else distilled != 0
        self._last = {name: part if plain is None else part[plain] for name, part in last.items()}

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "last": self._last}

    def _load(self, state: dict[str, Any]) -> None:
        self._last = dict(state["last"])
