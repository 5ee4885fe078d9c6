"""Self-distillation from the last mini-batch: the model agrees with its prediction one step ago, of another view."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pskd.door import Batch, check_trains, door
from pskd.errors import PskdError
from pskd.linear_head import LinearHead, Output
from pskd.methods.base import Loss, Method
from pskd.methods.card import Card
from pskd.methods.distilling import softened_divergence
from pskd.settings import Count, NotNegative, Positive
from pskd.targets import Targets
from pskd.tensors import to_device


@dataclass(eq=False, repr=False)
class DLB(Method):
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
    card = Card("DLB", shares_mix=True, not_settings=("reduction", "weight"))
    needs = frozenset({"view", "last_logits"})

    epochs: Count
    temperature: Positive = 3.0
    alpha: NotNegative = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._last: dict[str, Tensor] = {}  # view, logits and labels

    @property
    def last_view(self) -> Tensor | None:
        """The images that the model has to see again; None: there are none."""
        return self._last.get("view")

    def begin(self, epoch: int, *, again: bool) -> None:
        if not again:
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
        logits, _ = output.logits() if isinstance(output, LinearHead) else output, self.epoch
        check_trains(logits)
        if view is None or len(view) != len(logits):
            raise PskdError("view is missing: call with view=..., another view of each image of this batch")
        self.checks.settle()
        batch = door(logits, targets, distilled, checks=self.checks)
        share = torch.ones_like(batch.log_p[:, 0]) if batch.share is None else batch.share
        total, count = batch.cross_entropy(batch.target).sum(), share.sum()
        distillation = torch.zeros_like(count)
        if self._last:
            last = self._last_batch(last_logits, logits.device)
            share = torch.ones_like(last.log_p[:, 0]) if last.share is None else last.share
            total, count = total + last.cross_entropy(last.target).sum(), count + share.sum()
            before = last.flat(to_device(self._last["logits"], logits.device))
            divergence = share * softened_divergence(last.logits, before, self.temperature, last.masked)
            distillation = self.alpha * self.temperature**2 * divergence.sum() / share.sum().clamp_min(1)
        self._keep(batch, logits.detach(), targets, view.detach(), distilled)
        self.checks.send()
        cross_entropy = total / count
        parts = {"cross_entropy": cross_entropy.detach(), "distillation": distillation.detach()}
        return Loss(cross_entropy + distillation, parts)

    def _last_batch(self, again: Tensor | None, device: torch.device) -> Batch:
        """The last batch, with the model's logits of now."""
        before, labels = self._last["logits"], self._last["labels"]
        if again is None:
            raise PskdError("last_logits is missing: call with last_logits=..., the model's for method.last_view")
        if again.shape != before.shape:
            raise PskdError(
                f"last_logits has shape {tuple(again.shape)}, but the last batch has {tuple(before.shape)}: run the"
                " model on method.last_view"
            )
        return door(again, to_device(labels, device), checks=self.checks)

    def _keep(self, batch: Batch, logits: Tensor, targets: Targets, view: Tensor, distilled: Tensor | None) -> None:
        labels = targets if batch.labels is not None else None if batch.own_labels is None else targets[0]
        if labels is None or (distilled is not None and not bool(distilled.any())):
            self._last = {}
            return
        assert isinstance(labels, Tensor)
        last = {"view": view, "logits": logits, "labels": labels.long()}
        plain = None if distilled is None else distilled != 0
        self._last = {name: part if plain is None else part[plain] for name, part in last.items()}

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "last": self._last}

    def load_own(self, state: dict[str, Any]) -> None:
        self._last = dict(state["last"])
