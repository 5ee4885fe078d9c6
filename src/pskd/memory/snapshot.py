"""A frozen copy of the model: past predictions by one more forward pass, nothing stored per sample.

This is the paper's "load the model at (t-1)": the copy is in evaluation mode and sees the same augmented batch. It
needs no sample index, so it serves streams, tokens and dense predictions. A copy that follows the model step by step,
as an exponential mean of its weights, is what the field calls a mean teacher.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from itertools import compress
from typing import Annotated, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pskd.door import Batch, check_past
from pskd.errors import PskdError
from pskd.linear_head import LinearHead, Output
from pskd.memory.base import Memory
from pskd.settings import Count, Positive, Range, check_arguments
from pskd.targets import Past
from pskd.tensors import accumulation_dtype, several_processes


class _Refresh:
    """A copy that is renewed every ``period`` epochs; ``copies`` counts how often it was."""

    def __init__(self, period: float, steps_per_epoch: int | None) -> None:
        self.period, self.steps, self.copies = period, steps_per_epoch or 1, 0
        self.inside_epochs = period != int(period)  # or else a step need not ask

    def is_due(self, epoch: int, step: int) -> bool:
        """Whether a copy is due in this step; an epoch that is longer than told does not run ahead of the next."""
        copies = math.floor((epoch + min(step, self.steps - 1) / self.steps) / self.period + 1e-9)
        due, self.copies = copies > self.copies, max(copies, self.copies)
        return due


class _Mean:
    """An exponential mean of the model's weights that takes one step for every call; ``copies`` counts them.

    In its nth step it keeps at most (n - 1) / n, so it is the plain mean of the models until it has seen enough. The
    count is a tensor of the device: nothing waits for it, and a compiled step stays as it is.
    """

    def __init__(self, decay: float, device: torch.device) -> None:
        exact = torch.float32 if device.type == "mps" else torch.float64  # which has no wider type
        self.decay, self.copies = decay, torch.zeros((), dtype=exact, device=device)

    def follow(self, mean: nn.Module, model: nn.Module) -> None:
        self.copies += 1
        step = 1 - ((self.copies - 1) / self.copies).clamp_max(self.decay)
        ours, theirs = _weights(mean), _weights(model)
        floating = [own.is_floating_point() for own in ours]
        if any(floating):  # a model may have no weights at all
            means = list(compress(ours, floating))
            ways = torch._foreach_sub(list(compress(theirs, floating)), means)
            torch._foreach_mul_(ways, step.to(ways[0].dtype))
            torch._foreach_add_(means, ways)
        for own, other, is_mean in zip(ours, theirs, floating, strict=True):
            if not is_mean:
                own.copy_(other)


class Snapshot(Memory):
    """The model as it was, renewed every ``refresh`` epochs, or following it by an exponential mean.

    Args:
        model: the model in training; wrappers of DistributedDataParallel and ``torch.compile`` are taken off. It
            returns logits, a ``LinearHead``, or an object that has either as ``.logits``.
        refresh: epochs between two copies; 1 is the paper's, 0.5 copies twice an epoch and needs ``steps_per_epoch``.
            With ``PSKD(steps=...)`` it counts steps.
        steps_per_epoch: how often the method is called in an epoch.
        ema: d in [0, 1); with it nothing is renewed, but at every call of the method each weight of the copy becomes
            ``d * weight + (1 - d) * weight of the model``, from the very first on. In the nth call d is at most
            (n - 1) / n, so that the copy is the plain mean of the models until it has seen enough of them, and random
            first weights count no more than others. Buffers of floating type, such as the statistics of batch
            normalisation, follow in the same way; others, such as counters, are taken over.
        logits_of: makes logits (B, K, ...) or a ``LinearHead`` of what the model returns, if it is neither.

    Cost: one forward pass without gradient per step, and one more copy of the weights.
    """

    needs = "inputs"

    def __init__(
        self,
        model: nn.Module,
        refresh: Positive = 1.0,
        steps_per_epoch: Count | None = None,
        ema: Annotated[float | None, Range(ge=0, lt=1)] = None,
        *,
        logits_of: Callable[[Any], Output] | None = None,
    ) -> None:
        check_arguments(Snapshot.__init__, locals())
        if ema is not None and refresh != 1:
            raise PskdError(f"refresh={refresh} and ema={ema}: a copy that follows is never renewed; give one of them")
        if steps_per_epoch is None and refresh != int(refresh):
            raise PskdError(f"refresh={refresh} is not a whole number of epochs: give steps_per_epoch too")
        self._model, self.refresh, self.steps_per_epoch, self.ema = model, refresh, steps_per_epoch, ema
        self.logits_of = logits_of
        self.clear()

    @property
    def model(self) -> nn.Module:
        """The model in training, without wrappers."""
        return unwrap_model(self._model)

    @property
    def device(self) -> torch.device:
        first = next(self._model.parameters(), None)
        return torch.device("cpu") if first is None else first.device

    def to(self, device: str | torch.device) -> Snapshot:
        if self._copy is not None:
            self._copy.to(device)
        return self

    def clear(self) -> None:
        """Forget the copy."""
        self._copy: nn.Module | None = None
        self._epoch = self._step = 0
        self._pace = _Refresh(self.refresh, self.steps_per_epoch) if self.ema is None else _Mean(self.ema, self.device)

    def start_epoch(self, epoch: int) -> None:
        if self.ema is not None and self._copy is None:
            self._copy = _frozen_copy(self.model)  # here, since the first step may be compiled
        if epoch == self._epoch:
            return  # a resume within the epoch: a copy that is due waits for the same moment as without it
        self._epoch, self._step = epoch, 0
        if isinstance(self._pace, _Refresh):
            self._refresh_if_due()
        elif self._copy is not None:
            _share_buffers(self._copy)

    def start_step(self, step: int) -> None:
        if self.ema is not None:
            return  # it follows at every call anyway
        if self.refresh < 2:
            raise PskdError(
                f"refresh={self.refresh:g}: with PSKD(steps=...) a snapshot is renewed every so many steps, 2 at"
                " least; give refresh=1000, or as many as an epoch would have"
            )
        self.start_epoch(step)

    def key(self, *, index: Any = None, inputs: Any = None) -> _Call:
        """The inputs of a step: a tensor, a tuple of arguments or a dict of keywords."""
        if inputs is None:
            raise PskdError("inputs is missing: with a Snapshot, call with inputs=...")
        return _Call(inputs)

    def read(self, key: _Call, batch: Batch) -> Past | None:
        """The copy's predictions of the inputs."""
        if not key.ran:
            self._update(key)
            key.output, key.ran = self._predict(key.inputs), True
        output = key.output
        if output is None:
            return None
        if batch.part is not None and not isinstance(output, LinearHead):
            raise PskdError("inputs: the snapshot's model returns logits, but a LinearHead was given: return that too")
        with torch.no_grad():
            if isinstance(output, LinearHead):
                output = output.logits() if batch.part is None else output.part(batch.part).logits()
            logits = output if batch.part is not None else batch.flat(output)
            past = Past(torch.softmax(logits, 1, accumulation_dtype(logits.dtype)), known=batch.valid)
        check_past(past, batch.logits)
        return past

    def write(self, key: _Call, batch: Batch, log_p: Tensor | None = None, past: Past | None = None) -> None:
        """Nothing is stored; the step is counted, once for all its parts."""
        if key.counted:
            return
        self._update(key)  # also in steps that did not ask for the past
        key.counted = True
        if isinstance(self._pace, _Refresh) and self._pace.inside_epochs:
            self._step += 1

    def _predict(self, inputs: Any) -> Output | None:
        """What the copy, once there is one, makes of the inputs."""
        if self._copy is None:
            return None
        with torch.no_grad():
            if isinstance(inputs, Mapping):
                output = self._copy(**inputs)
            elif isinstance(inputs, (tuple, list)):  # torch 2.6 cannot compile a union of types
                output = self._copy(*inputs)
            else:
                output = self._copy(inputs)
        if self.logits_of is not None:
            return self.logits_of(output)
        if not isinstance(output, (Tensor, LinearHead)):
            found, output = type(output).__name__, getattr(output, "logits", None)
            if not isinstance(output, (Tensor, LinearHead)):
                raise PskdError(
                    f"model: a snapshot's returns logits, or an object that has them as .logits, not {found}"
                )
        return output

    def state_dict(self) -> dict[str, Any]:
        """The copy's weights are views, so save them before the next step."""
        weights = {} if self._copy is None else self._copy.state_dict()
        return {"epoch": self._epoch, "step": self._step, "renewals": int(self._pace.copies), "weights": weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if not {"epoch", "step", "renewals", "weights"} <= set(state):
            raise PskdError("state: it is not that of a Snapshot, which has weights; use the memory that was saved")
        frozen = _frozen_copy(self.model) if state["weights"] else None
        if frozen is not None:
            try:
                frozen.load_state_dict(state["weights"])
            except RuntimeError as error:
                why = " ".join(str(error).split())
                raise PskdError(f"state: the snapshot's weights are those of another model: {why}") from error
        self.clear()
        self._epoch, self._step, self._copy = state["epoch"], state["step"], frozen
        self._pace.copies += state["renewals"]

    @torch.no_grad()
    def _update(self, key: _Call) -> None:
        """Once in a step: bring the copy to where it has to be."""
        if key.updated:
            return
        key.updated = True
        if isinstance(self._pace, _Mean):
            self._copy = _frozen_copy(self.model) if self._copy is None else self._copy
            self._pace.follow(self._copy, self.model)
        elif self._pace.inside_epochs:
            self._refresh_if_due()

    @torch.no_grad()
    def _refresh_if_due(self) -> None:
        assert isinstance(self._pace, _Refresh)
        if not self._pace.is_due(self._epoch, self._step):
            return
        if self._copy is None:
            self._copy = _frozen_copy(self.model)
        else:
            self._copy.load_state_dict(self.model.state_dict())
        _share_buffers(self._copy)


class _Call:
    """A step's inputs, and what the copy makes of them."""

    def __init__(self, inputs: Any) -> None:
        self.inputs, self.updated, self.ran, self.counted = inputs, False, False, False
        self.output: Output | None = None


def _weights(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


def _share_buffers(frozen: nn.Module) -> None:
    """Batch statistics are each process's own within an epoch."""
    if several_processes():
        for buffer in frozen.buffers():
            dist.broadcast(buffer, 0)


def _frozen_copy(model: nn.Module) -> nn.Module:
    gradients = [parameter.grad for parameter in model.parameters()]
    try:
        for parameter in model.parameters():
            parameter.grad = None  # or they would be copied too
        frozen = copy.deepcopy(model)
    finally:
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient
    return frozen.requires_grad_(False).eval()


def unwrap_model(model: nn.Module) -> nn.Module:
    """The model inside the wrappers of ``torch.compile`` and DistributedDataParallel, in any order."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            inner = model.module
        if inner is None:
            return model
        model = inner
