"""Progressive self-knowledge distillation: the model's own predictions of the epoch before soften its targets."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pskd.checks import ValueChecks
from pskd.errors import PskdError
from pskd.memory.base import Memory
from pskd.methods.base import Loss, Method
from pskd.schedules import SCHEDULES, Schedule
from pskd.targets import Labels, Past, check_shapes, class_index_message, out_of_range, position_losses, wide

IGNORE_INDEX = -100


class PSKD(Method):
    """``L_t = H((1 - alpha_t) * y + alpha_t * P_(t-1), P_t)`` with ``alpha_t = alpha * schedule(t / epochs)``.

    Args:
        epochs: T, the length of the training. alpha reaches its final value in the last epoch.
        alpha: alpha_T, the one hyperparameter. The paper: 0.8 on CIFAR-100, 0.3 on ImageNet, 0.7 on translation.
        schedule: "linear" (the paper's), "step", "exponential", "cosine", "constant", or a function of t/T.
        memory: where P_(t-1) comes from, ``PredictionBank`` (call with ``index=``) or ``Snapshot`` (with ``inputs=``).

    In the first epoch, and for a sample that has no past prediction yet, the target is the label.

    Cost: with a bank one row per sample and no forward pass; with a snapshot one forward pass without gradient per
    step. Use it wherever labels are classes; it needs neither a teacher nor a second training.

    Reference: Kim, Ji, Yoon, Hwang: Self-Knowledge Distillation with Progressive Refinement of Targets, ICCV 2021.
    """

    name = "ps_kd"

    def __init__(self, epochs: int, alpha: float = 0.8, schedule: str | Schedule = "linear", *, memory: Memory) -> None:
        if epochs < 1:
            raise PskdError(f"epochs must be at least 1, got {epochs}")
        if not 0 <= alpha <= 1:
            raise PskdError(f"alpha must lie in [0, 1], got {alpha}")
        if isinstance(schedule, str) and schedule not in SCHEDULES:
            raise PskdError(f"schedule is {schedule!r}; allowed are {', '.join(SCHEDULES)}, or a function")
        if not isinstance(memory, Memory):
            raise PskdError(f"memory must be a pskd.PredictionBank or a pskd.Snapshot, got {type(memory).__name__}")
        self.epochs, self.alpha, self.memory = epochs, alpha, memory
        self.schedule = SCHEDULES[schedule] if isinstance(schedule, str) else schedule
        self.needs = frozenset({memory.needs})
        self._epoch: int | None = None
        self._loaded_epoch: int | None = None
        self._checks = ValueChecks()

    @property
    def alpha_t(self) -> float:
        """alpha in the current epoch (Eq. 5; the paper counts epochs from 1)."""
        if self._epoch is None:
            raise PskdError("start_epoch: call start_epoch(epoch) before the first batch of every epoch")
        return self.alpha * self.schedule((self._epoch + 1) / self.epochs)

    def start_epoch(self, epoch: int) -> None:
        """Begin the 0-based ``epoch``; the first one is 0, or follows the state that was loaded."""
        before = self._loaded_epoch if self._epoch is None else self._epoch
        if epoch >= self.epochs:
            raise PskdError(
                f"start_epoch({epoch}) is past the last epoch: epochs={self.epochs}, so 0..{self.epochs - 1}"
            )
        if before is None and epoch != 0:
            raise PskdError(
                f"start_epoch({epoch}) comes first, but no state was loaded: start at 0, or load_state_dict()"
            )
        if before is not None and epoch not in (before, before + 1):
            raise PskdError(f"start_epoch({epoch}) cannot follow epoch {before}: allowed are {before} and {before + 1}")
        self._checks.settle()
        self._epoch = epoch
        self.memory.start_epoch(epoch)

    def __call__(
        self,
        logits: Tensor,
        targets: Labels,
        index: Tensor | None = None,
        inputs: Any = None,
        distilled: Tensor | None = None,
        **needs: Any,
    ) -> Tensor:
        return self.loss(logits, targets, index=index, inputs=inputs, distilled=distilled).total

    def loss(
        self,
        logits: Tensor,
        targets: Labels,
        *,
        index: Tensor | None = None,
        inputs: Any = None,
        distilled: Tensor | None = None,
        **needs: Any,
    ) -> Loss:
        """The mean loss of a training batch; reads the past of these samples, then records their predictions.

        Args:
            logits: (B, K) or (B, K, d1, ...), with gradient.
            targets: class indices (-100 is skipped), class probabilities or a mixed pair ``(a, b, lam)``.
            index: which training samples these are, shaped like class indices; what a bank needs.
            inputs: the model's inputs; what a snapshot needs.
            distilled: (B) or shaped like class indices; where false, the label alone counts and nothing is recorded.
        """
        self._checks.settle()
        alpha = self.alpha_t
        if not logits.requires_grad:
            raise PskdError("logits have no gradient: call the method in training only, so that no row is overwritten")
        key = index if self.memory.needs == "index" else inputs
        if key is None:
            wanted = {"index": "index=", "inputs": "inputs="}[self.memory.needs]
            raise PskdError(f"{wanted[:-1]} is missing: a {type(self.memory).__name__} is called with {wanted}...")
        check_shapes(logits, targets, None)
        self.memory.check(key, logits)
        self._check_values(logits, targets)

        labels = targets if isinstance(targets, Tensor) and not targets.is_floating_point() else None
        take = self._taken(logits, labels, distilled)
        past = self.memory.recall(key, labels=labels, take=take)
        if past is not None:
            past = past.to(logits.device)
            if take is not None:
                past = Past(past.values, past.classes, take if past.known is None else take & past.known)
            check_shapes(logits, targets, past)
        losses, share = position_losses(logits, targets, past, alpha, IGNORE_INDEX)
        total = losses.sum() / share.sum()
        self.memory.record(key, logits.detach(), labels=labels, take=take)
        return Loss(total, {"soft_cross_entropy": total.detach()})

    def state_dict(self) -> dict[str, Any]:
        """Epoch and memory; tensors are views, so save them before the next step."""
        self._checks.settle()
        return {"epoch": -1 if self._epoch is None else self._epoch, "memory": self.memory.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue in the epoch that was saved or after it: ``start_epoch`` takes either."""
        self._epoch = None
        self._loaded_epoch = state["epoch"] if state["epoch"] >= 0 else None
        self.memory.load_state_dict(state["memory"])

    def _taken(self, logits: Tensor, labels: Tensor | None, distilled: Tensor | None) -> Tensor | None:
        """Where the memory is read and written; None means everywhere."""
        positions = (logits.shape[0], *logits.shape[2:])
        take = None
        if labels is not None and (logits.ndim > 2 or self.memory.needs == "index"):
            take = labels != IGNORE_INDEX
        if distilled is not None:
            if tuple(distilled.shape) not in (positions, positions[:1]):
                raise PskdError(f"distilled has shape {tuple(distilled.shape)}; one per sample or label is {positions}")
            distilled = distilled.bool().to(logits.device)
            distilled = distilled.reshape(-1, *[1] * (len(positions) - distilled.ndim), *distilled.shape[1:])
            take = distilled.expand(positions) if take is None else take & distilled
        return take

    def _check_values(self, logits: Tensor, targets: Labels) -> None:
        num_classes = logits.shape[1]
        pair = (targets,) if isinstance(targets, Tensor) else targets[:2]
        for labels in pair:
            if not labels.is_floating_point():
                self._checks.require_none(
                    out_of_range(labels, num_classes, IGNORE_INDEX),
                    lambda wrong, labels=labels: class_index_message(  # type: ignore[misc]
                        "targets", wrong, int(labels.min()), int(labels.max()), num_classes
                    ),
                )
        # A sum is finite just where all its terms are (float32 leaves room for any real network's logits).
        sums = logits.detach().sum(1, dtype=wide(logits.dtype))
        self._checks.require_none(
            ~torch.isfinite(sums),
            lambda rows: (
                f"logits: {rows} of {sums.numel()} rows are NaN or infinite in epoch {self._epoch} (counted from 0);"
                " lower the learning rate or look for a division by zero in the model"
            ),
        )
