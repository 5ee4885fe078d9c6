"""Progressive self-knowledge distillation: the model's own predictions of the epoch before soften its targets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from pskd.door import NO_GRADIENT, Batch
from pskd.errors import PskdError
from pskd.linear_head import LinearHead, Output
from pskd.memory.base import Memory
from pskd.methods.auto_alpha import AutoAlpha
from pskd.methods.base import Loss, Method
from pskd.methods.card import Card
from pskd.methods.clock import Clock
from pskd.methods.cs_kd import partner_term
from pskd.methods.ramp import Ramp
from pskd.schedules import SCHEDULES, Schedule, ScheduleName
from pskd.settings import Count, NotNegative, Share
from pskd.targets import Past, Targets, soften

SHORT, MUCH = 30, 0.5  # in fewer epochs, alphas from here on cost accuracy (results/when-it-helps)


def _advise(method: PSKD) -> str | None:
    if method.epochs is None or method.epochs >= SHORT or method.alpha == "auto" or method.alpha < MUCH:
        return None
    return (
        f"alpha {method.alpha:g} in {method.epochs} epochs: PS-KD usually costs accuracy in trainings this short;"
        " method.alpha=auto keeps them plain"
    )


@dataclass(eq=False, repr=False)
class PSKD(Method):
    """``L_t = H((1 - alpha_t) * y + alpha_t * P_(t-1), P_t)`` with ``alpha_t = alpha * schedule(t / epochs)``.

    Args:
        epochs: T, the length of the training. alpha reaches its final value in the last epoch.
        steps: T in steps instead, for a stream that has no epochs: every call is a step, unless ``start_step`` says
            which it is; after the last one alpha stays, and ``start_epoch`` does nothing.
        alpha: alpha_T, the one hyperparameter. The paper: 0.8 on CIFAR-100, 0.3 on ImageNet, 0.7 on translation.
            "auto", ours: ``alpha_T = m^k``, where m is the mean that the model gave to its labels in the epoch before
            (with ``steps``, so far), and ``k = max(1, 100 / epochs)`` (with ``steps`` 1): alpha is set by how well the
            model already fits its training labels, so short trainings are left alone. Several processes add up m in
            every step.
        schedule: "linear" (the paper's), "step", "exponential", "cosine", "constant", or a function of t/T.
        memory: where P_(t-1) comes from, ``PredictionBank`` (call with ``index=``) or ``Snapshot`` (with ``inputs=``).
        partners: W, ours, 0 in the paper. ``W * (1 - alpha_t)`` times the term of CS-KD at its temperature of 4 is
            added: while the past is little trusted, samples of one class teach each other. Call with
            ``partner_logits=`` as ``CSKD`` says.

    In the first epoch, and wherever there is no past prediction yet, the target is the label.

    Cost: with a bank one record per sample and no forward pass; with a snapshot one forward pass without gradient per
    step; with partners one more, and one more batch of data. Use it wherever labels are classes; it needs neither a
    teacher nor a second training.

    Reference: Kim, Ji, Yoon, Hwang: Self-Knowledge Distillation with Progressive Refinement of Targets, ICCV 2021.
    """

    name = "ps_kd"
    card = Card("PS-KD", shares_mix=True, logs=("alpha_t",), not_settings=("steps",), advise=_advise)
    takes_heads = takes_weight = True
    # Is shown logits (n, K), targets, past predictions and alpha of every batch that has a past.
    watch: Callable[[Tensor, Targets, Past, Tensor], None] | None = field(init=False, default=None)

    epochs: Count | None = None
    alpha: Share | Literal["auto"] = 0.8
    schedule: ScheduleName | Schedule = "linear"
    memory: Memory = field(kw_only=True)
    partners: NotNegative = field(default=0.0, kw_only=True)
    steps: Count | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.steps is None):
            raise PskdError(
                f"epochs={self.epochs}, steps={self.steps}: give one of the two, the length of the training"
            )
        super().__post_init__()
        if self.steps is not None:
            self.clock = Clock(self.steps, "step", "PSKD")
        schedule = SCHEDULES[self.schedule] if isinstance(self.schedule, str) else self.schedule
        length, unit, device = self.clock.length, self.clock.unit, self.memory.device
        self.schedule = schedule
        if self.alpha == "auto":
            self._ramp: Ramp = AutoAlpha(schedule, length, unit, device)
        else:
            self._ramp = Ramp(self.alpha, schedule, length, unit, device)
        self._counts_itself = self.steps is not None  # whether a call is a step
        self._has_past = False
        if self.partners:
            self.needs |= {"partner_logits"}

    def loss(
        self,
        output: Output,
        targets: Targets,
        *,
        index: Tensor | None = None,
        inputs: Any = None,
        partner_logits: Tensor | None = None,
        distilled: Tensor | None = None,
    ) -> Loss:
        """The loss of a training batch; reads the past of these samples, then records their predictions.

        Args:
            output: logits (B, K) or (B, K, d1, ...), with gradient; or a ``LinearHead``, whose logits then exist only a
                few positions at a time (with a snapshot, the model's own output has to be one too).
            targets: class indices (-100 is skipped), class probabilities or a mixed pair ``(a, b, lam)``.
            index: which training samples these are, shaped like class indices; what a bank needs.
            inputs: the model's inputs; what a snapshot needs.
            partner_logits: shaped like the logits, those of other samples of each one's class; what partners need.
            distilled: (B) or shaped like class indices; where false, the label alone counts and nothing is recorded.
        """
        if not output.requires_grad:
            raise PskdError(NO_GRADIENT)
        if self._counts_itself:
            self._begin_step(0 if self.clock.last is None else self.clock.last + 1)
        if not self.clock.begun:
            self.clock.refuse()
        key = self.memory.key(index=index, inputs=inputs)

        def terms(batch: Batch) -> dict[str, Tensor]:
            past = self.memory.read(key, batch) if self._has_past else None  # P_(t-1)
            alpha = self._ramp.value.to(batch.log_p, non_blocking=True)  # Eq. 5
            q = batch.target if past is None else soften(batch.target, past, alpha)  # Eq. 6
            parts = {"soft_cross_entropy": batch.cross_entropy(q)}
            if self.partners:
                parts["partners"] = self.partners * (1 - alpha) * partner_term(batch, partner_logits)
            self.memory.write(key, batch, past=past)  # what the next epoch will read
            if isinstance(self._ramp, AutoAlpha):
                self._ramp.observe(batch)
            if self.watch is not None and past is not None:
                self.watch(batch.logits, targets, past.normalised(), alpha)
            return parts

        if self.partners and isinstance(output, LinearHead):
            output = output.logits()
        loss = self.batch_loss(output, targets, distilled, terms)
        if isinstance(self._ramp, AutoAlpha):
            self._ramp.end_step()
        return loss

    @property
    def alpha_t(self) -> float:
        """alpha in the current epoch (Eq. 5; the paper counts epochs from 1), or step."""
        if self.steps is not None and not self.clock.begun:
            raise PskdError("alpha_t: no step was made yet")
        _ = self.epoch  # has begun
        return float(self._ramp.value)

    def start_epoch(self, epoch: int) -> None:
        if self.steps is None:
            super().start_epoch(epoch)

    def begin(self, epoch: int, *, again: bool) -> None:
        self._ramp.start(epoch, again=again)
        self._has_past = epoch > 0  # the first epoch is plain cross-entropy

    def start_step(self, step: int) -> None:
        """Begin the 0-based ``step``, where not every call is one: with ``PSKD(steps=...)``, before its first batch."""
        if self.steps is None:
            raise PskdError(f"start_step({step}): this PSKD counts epochs; make it with steps= instead of epochs=")
        step = self.clock.check_step(step)
        self._counts_itself = False
        self._begin_step(step)

    def _begin_step(self, step: int) -> None:
        self._ramp.start(step)
        self._has_past = True  # the memory knows what it has
        if self.clock.last is None:
            self.memory.clear()  # it may have served another training
        self.memory.start_step(step)
        self.clock.begin(step)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), **self._ramp.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue in the epoch that was saved or after it: ``start_epoch`` takes either.

        ``epochs`` or ``steps`` may differ from those of then; a warning tells how that changes alpha.
        """
        self._ramp.check_state(state)
        super().load_state_dict({**self._ramp.state_dict(), **state})  # an older version's says nothing of these
        self._ramp.tell_change(state, self.clock.last)

    def load_own(self, state: dict[str, Any]) -> None:
        self._ramp.load_state_dict(state)

    def __repr__(self) -> str:
        at = f" at {self.clock.unit} {self.clock.last}, alpha_t={self.alpha_t:.3g}" if self.clock.begun else ""
        return super().__repr__() + at
