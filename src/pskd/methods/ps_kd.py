"""Progressive self-knowledge distillation: the model's own predictions of the epoch before soften its targets."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from pskd.checks import at_hand
from pskd.errors import PskdError
from pskd.fused import log_likelihood
from pskd.linear_head import Output, Part
from pskd.memory.base import Memory, MemoryStep
from pskd.memory.snapshot import Snapshot
from pskd.methods.base import (
    IGNORE_INDEX,
    ClassWeight,
    Loss,
    Surroundings,
    batch_loss,
    whole_logits,
)
from pskd.methods.cs_kd import TEMPERATURE, partner_divergence
from pskd.methods.distilling import label_weights
from pskd.methods.ramp import Learnt, Ramp
from pskd.methods.remembering import FloatName, Form, Remembering, bank_for, check_trains, fitted, taken
from pskd.names import methods
from pskd.schedules import SCHEDULES, Schedule, ScheduleName
from pskd.settings import Count, NotNegative, Place, Positive, Range, Share, check_arguments
from pskd.targets import (
    Reduction,
    Targets,
    check_shapes,
    check_targets,
    label_target,
    position_losses,
    reduced,
)

AUTO_LONG = 100  # epochs from which on alpha="auto" takes m as it is
SHORT, MUCH = 30, 0.5  # in fewer epochs, alphas from here on cost accuracy (results/when-it-helps)


@methods.register("ps_kd")
class PSKD(Remembering):
    """``L_t = H((1 - alpha_t) * y + alpha_t * P_(t-1), P_t)`` with ``alpha_t = alpha * schedule(t / epochs)``.

    Args:
        epochs: T, the length of the training. alpha reaches its final value in the last epoch.
        steps: T in steps instead, for a stream that has no epochs: every call is a step, unless ``start_step`` says
            which it is; after the last one alpha stays, and ``start_epoch`` does nothing.
        alpha: alpha_T, the one hyperparameter. The paper: 0.8 on CIFAR-100, 0.3 on ImageNet, 0.7 on translation.
            "auto", ours: ``alpha_T = m^k``, where m is the mean that the model gave to its labels in the epoch before
            (with ``steps``, so far), and ``k = max(1, 100 / epochs)`` (with ``steps`` 1). The past is trusted as far
            as the training data are learnt, and short trainings stay plain. Several processes add up m in every step.
        schedule: "linear" (the paper's), "step", "exponential", "cosine", "constant", or a function of t/T.
        memory: where P_(t-1) comes from, ``PredictionBank`` (call with ``index=``) or ``Snapshot`` (with ``inputs=``).
        partners: W, ours, 0 in the paper. ``W * (1 - alpha_t)`` times the term of CS-KD at its temperature of 4 is
            added: while the past is little trusted, samples of one class teach each other. Call with
            ``partner_logits=`` as ``CSKD`` says.

    In the first epoch, and wherever there is no past prediction yet, the target is the label.

    Cost: with a bank one row per sample and no forward pass; with a snapshot one forward pass without gradient per
    step; with partners one more, and one more batch of data. Use it wherever labels are classes; it needs neither a
    teacher nor a second training.

    Reference: Kim, Ji, Yoon, Hwang: Self-Knowledge Distillation with Progressive Refinement of Targets, ICCV 2021.
    """

    name = "ps_kd"
    title = "PS-KD"
    shares_mix = True
    takes_heads = takes_weight = True
    python_only = ("steps",)

    def __init__(
        self,
        epochs: Count | None = None,
        alpha: Share | Literal["auto"] = 0.8,
        schedule: ScheduleName | Schedule = "linear",
        *,
        memory: Memory,
        partners: NotNegative = 0.0,
        steps: Count | None = None,
        reduction: Reduction = "mean",
        weight: ClassWeight = None,
    ) -> None:
        check_arguments(PSKD.__init__, locals())
        if (epochs is None) == (steps is None):
            raise PskdError(f"epochs={epochs}, steps={steps}: give one of the two, the length of the training")
        super().__init__(epochs, memory, reduction=reduction, weight=weight)
        self.steps, self.alpha, self.partners = steps, alpha, partners
        self.schedule = SCHEDULES[schedule] if isinstance(schedule, str) else schedule
        most = 1.0 if alpha == "auto" else alpha
        self._ramp = Ramp(most, self.schedule, epochs or steps or 1, "step" if epochs is None else "epoch")
        self._learnt = Learnt(max(1.0, AUTO_LONG / (epochs or AUTO_LONG))) if alpha == "auto" else None
        self._counts_itself = steps is not None
        if partners:
            self.needs |= {"partner_logits"}

    @classmethod
    def from_settings(
        cls,
        around: Surroundings,
        *,
        memory: Literal["bank", "snapshot"] = "bank",
        form: Form = "auto",
        k: Count = 32,
        dtype: FloatName = "float16",
        path: Annotated[str | None, Place(written=True)] = None,
        momentum: Annotated[float, Range(ge=0, lt=1)] = 0.0,
        refresh: Positive = 1.0,
        ema: Annotated[float | None, Range(ge=0, lt=1)] = None,
        **settings: Any,
    ) -> Self:
        """With the memory that the settings describe.

        Args:
            memory: where past predictions come from: "bank", one stored row per sample, or "snapshot", a copy of the
                model.
            form: of a bank: "dense" keeps every class, "topk" the likeliest; "auto" is dense up to 1000 classes.
            k: classes that a top-k bank keeps of each sample.
            dtype: of a bank's rows.
            path: a scratch file for a bank's rows instead of RAM.
            momentum: of a bank: a row becomes momentum * row + (1 - momentum) * prediction. The paper: 0.
            refresh: epochs between two copies of a snapshot.
            ema: of a snapshot that follows the model: how much of its weights it keeps in a step, such as 0.99.
        """
        check_arguments(cls.from_settings, locals())
        if memory == "snapshot" and momentum:
            raise PskdError(f"method.momentum={momentum} is a bank's; with memory=snapshot take method.ema instead")
        if memory == "bank" and ema is not None:
            raise PskdError(f"method.ema={ema} is a snapshot's: add method.memory=snapshot, or take method.momentum")
        made: Memory
        if memory == "snapshot":
            made = Snapshot(around.model, refresh, around.steps_per_epoch, ema)
        else:
            made = bank_for(around, form, k, dtype, path, momentum=momentum)
        return super().from_settings(around, memory=made, **settings)

    @property
    def advice(self) -> str | None:
        if self.epochs is None or self.epochs >= SHORT or self.alpha == "auto" or self.alpha < MUCH:
            return None
        return (
            f"alpha {self.alpha:g} in {self.epochs} epochs: PS-KD usually costs accuracy in trainings this short;"
            " method.alpha=auto keeps them plain"
        )

    def logged(self) -> dict[str, float]:
        return {"alpha_t": self.alpha_t}

    @property
    def alpha_t(self) -> float:
        """alpha in the current epoch (Eq. 5; the paper counts epochs from 1), or step."""
        if self.steps is not None and not self._begun:
            raise PskdError("alpha_t: no step was made yet")
        return float(self._alpha())

    def _alpha(self) -> float | Tensor:
        """alpha_t; that of "auto" stays on the device."""
        alpha = self._ramp.at(self.epoch)
        return alpha if self._learnt is None else alpha * self._learnt.share()

    def start_epoch(self, epoch: int) -> None:
        if self.steps is None:
            super().start_epoch(epoch)

    def begin(self, epoch: int, *, anew: bool) -> None:
        self._ramp.at(epoch)  # a schedule that leaves its range is refused before anything changes
        super().begin(epoch, anew=anew)
        if self._learnt is not None and epoch != self._epoch:
            self._learnt.renew()
            self._learnt.forget()

    def start_step(self, step: int) -> None:
        """Begin the 0-based ``step``, where not every call is one: with ``PSKD(steps=...)``, before its first batch."""
        if self.steps is None:
            raise PskdError(f"start_step({step}): this PSKD counts epochs; make it with steps= instead of epochs=")
        if step < (self._epoch or 0):
            raise PskdError(f"start_step({step}) cannot follow step {self._epoch}")
        self._counts_itself = False
        self._begin_step(step)

    def _begin_step(self, step: int) -> None:
        self._ramp.at(step)
        self._checks.settle()
        if self._epoch is None:
            self.memory.clear()  # it may have served another training
        self.memory.start_step(step)
        if self._learnt is not None:
            self._learnt.renew()
        self._epoch, self._begun = step, True

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
        check_trains(output)
        alpha_t = self._alpha_of_call()
        # The first epoch is plain cross-entropy; without epochs, the memory knows what it has.
        step = self.step(output, index, inputs, recalls=self.steps is not None or self.epoch > 0)
        if self.partners:
            output = whole_logits(output)
        if self._learnt is not None:
            self._learnt.start_step()
        parts: dict[str, Tensor] = {}

        def losses(
            logits: Tensor, targets: Targets, distilled: Tensor | None, part: Part | None
        ) -> tuple[Tensor, Tensor]:
            each, share, alpha = self._losses(logits, targets, step, part, alpha_t, distilled)
            if self.partners:
                divergence = partner_divergence(logits, partner_logits, TEMPERATURE, distilled)
                counts = label_weights(targets, share, self.weight_at(logits))
                taught = self.partners * (1 - alpha) * counts * divergence
                parts["partners"] = reduced(taught.detach(), share, self.reduction)
                each = each + taught
            return each, share

        total = batch_loss(output, targets, distilled, losses, self.reduction)
        if self._learnt is not None:
            self._learnt.end_step()
        return Loss(total, {"soft_cross_entropy": total.detach() - sum(parts.values()), **parts})

    def _losses(
        self,
        logits: Tensor,
        targets: Targets,
        step: MemoryStep,
        part: Part | None,
        alpha: float | Tensor,
        distilled: Tensor | None,
    ) -> tuple[Tensor, Tensor, float | Tensor]:
        """The loss, the share in a mean and alpha of every position, (B, d1, ...); the memory is read, then written."""
        weight = self.weight_at(logits)
        check_shapes(logits, targets, weight=weight)
        step.check(part, logits)
        log_p = log_likelihood(logits)
        targets = self._checked(log_p, targets)
        labels = targets if isinstance(targets, Tensor) and not targets.is_floating_point() else None
        take = taken(logits, labels, distilled)
        past = step.past(part, labels=labels, take=take)
        target = label_target(logits, targets, IGNORE_INDEX, weight)
        past = None if past is None else fitted(past, logits, take)
        if self._learnt is not None:
            self._learnt.add(target.likelihood(log_p), take)
        if past is not None:
            if self.watch is not None:
                self.watch(logits, targets, past, alpha)
            target = target.mixed_with(past, alpha)
        losses = position_losses(logits, target, weight, log_p)
        step.record(part, log_p, labels=labels, take=take, normalised=True)
        return losses, target.share, alpha

    def _alpha_of_call(self) -> float | Tensor:
        """alpha_t of this batch; where nobody counts steps, it is one."""
        if self._counts_itself:
            self._begin_step(0 if self._epoch is None else self._epoch + 1)
        return self._alpha()

    def state_dict(self) -> dict[str, Any]:
        learnt = {} if self._learnt is None else {"learnt": self._learnt.state()}
        return {**super().state_dict(), **self._ramp.state_dict(), **learnt}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue in the epoch that was saved or after it: ``start_epoch`` takes either.

        ``epochs`` or ``steps`` may be others than then; what that makes of alpha is said in a warning.
        """
        self._ramp.check_state(state)
        older: dict[str, Any] = {**self._ramp.state_dict(), "learnt": torch.zeros(3)}  # it says nothing of these
        super().load_state_dict({**older, **state})
        if self._epoch is not None and self._learnt is None:
            self._ramp.tell_change(state, self._epoch)

    def _load(self, state: dict[str, Any]) -> None:
        super()._load(state)
        if self._learnt is not None:
            self._learnt.load(state["learnt"])

    def __repr__(self) -> str:
        at = f" at {self._ramp.unit} {self._epoch}, alpha_t={self.alpha_t:.3g}" if self._begun else ""
        return super().__repr__() + at

    def _checked(self, log_p: Tensor, targets: Targets) -> Targets:
        """The targets, after a look at all values: wrong ones raise here or, on an accelerator, one step later."""
        wrong, epoch = _not_finite(log_p) if self.strict else None, self._epoch
        if wrong is not None:
            self._checks.require_none(
                wrong,
                lambda rows: (
                    f"logits: {rows} of {wrong.numel()} rows are NaN or infinite in epoch {epoch} (counted from 0);"
                    " lower the learning rate or look for a division by zero in the model"
                ),
            )
        return check_targets(targets, log_p.shape[1], IGNORE_INDEX, self._checks)


def ps_kd_loss(logits: Tensor, labels: Tensor, past: Tensor, alpha: float) -> Tensor:
    """Eq. 6 of the paper: logits and past predictions (B, K), class indices (B), alpha of this epoch."""
    y = F.one_hot(labels, logits.shape[1]).to(logits.dtype)
    q = (1 - alpha) * y + alpha * past
    log_p = logits.log_softmax(1)
    return -(q * log_p).sum(1).mean()


def _not_finite(log_p: Tensor) -> Tensor | None:
    """True (B, ...) where there is no prediction: a logit is NaN or +inf, or all are -inf; None: nowhere.

    Each of these makes all of a log softmax NaN, so one class tells. Values not at hand get a mask.
    """
    wrong = log_p[:, 0].isnan()
    return None if at_hand(wrong) and not bool(wrong.any()) else wrong
