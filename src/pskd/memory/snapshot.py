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

from pskd.errors import PskdError
from pskd.linear_head import LinearHead, Output, Part
from pskd.memory.base import Memory, MemoryStep
from pskd.settings import Count, Positive, Range, check_arguments
from pskd.targets import Past
from pskd.tensors import accumulation_dtype


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

    Cost: one forward pass without gradient per step, and one more copy of the weights.
    """

    needs = "inputs"
    logits_of: Callable[[Any], Output] | None = None  # makes (B, K, ...) of what the model returns, if it is not that

    def __init__(
        self,
        model: nn.Module,
        refresh: Positive = 1.0,
        steps_per_epoch: Count | None = None,
        ema: Annotated[float | None, Range(ge=0, lt=1)] = None,
    ) -> None:
        check_arguments(Snapshot.__init__, locals())
        if ema is not None and refresh != 1:
            raise PskdError(f"refresh={refresh} and ema={ema}: a copy that follows is never renewed; give one of them")
        if steps_per_epoch is None and refresh != int(refresh):
            raise PskdError(f"refresh={refresh} is not a whole number of epochs: give steps_per_epoch too")
        self._model, self._refresh, self._steps_per_epoch, self.ema = model, refresh, steps_per_epoch, ema
        self.clear()

    @property
    def model(self) -> nn.Module:
        """The model in training, without wrappers."""
        return unwrap_model(self._model)

    def clear(self) -> None:
        """Forget the copy."""
        self._copy: nn.Module | None = None
        self._epoch = self._step = self._renewals = 0
        self._behind = True  # whether a copy that follows has not yet done so in this step

    def start_epoch(self, epoch: int) -> None:
        if epoch == self._epoch:
            return  # a resume within the epoch: a copy that is due waits for the same moment as without it
        self._epoch, self._step = epoch, 0
        self._renew_if_due()
        if self.ema is not None and self._copy is not None:
            self._share_buffers(self._copy)

    def start_step(self, step: int) -> None:
        if self.ema is not None:
            return  # it follows at every call anyway
        if self._refresh < 2:
            raise PskdError(
                f"refresh={self._refresh:g}: with PSKD(steps=...) a snapshot is renewed every so many steps, 2 at"
                " least; give refresh=1000, or as many as an epoch would have"
            )
        self.start_epoch(step)

    def recall(self, key: Any, *, labels: Tensor | None = None, take: Tensor | None = None) -> Past | None:
        """The copy's predictions for the inputs ``key``: a tensor, a tuple of arguments or a dict of keywords."""
        return _predictions(self._output(key), None)

    def record(
        self,
        key: Any,
        logits: Tensor,
        *,
        labels: Tensor | None = None,
        take: Tensor | None = None,
        normalised: bool = False,
    ) -> None:
        """Nothing is stored; the step is counted."""
        self._follow()  # also in steps that did not ask for the past
        self._step, self._behind = self._step + 1, True

    def step(self, key: Any, *, recalls: bool) -> MemoryStep:
        """The copy runs once, when the first past is asked for, and the step is counted once."""
        return _SnapshotStep(self, key, recalls)

    def _output(self, inputs: Any) -> Output | None:
        """What the copy, once there is one, makes of the inputs."""
        self._renew_if_due()
        self._follow()
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
        return {"epoch": self._epoch, "step": self._step, "renewals": self._renewals, "weights": weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if not {"epoch", "step", "renewals", "weights"} <= set(state):
            raise PskdError("state: it is not that of a Snapshot, which has weights; use the memory that was saved")
        frozen = self._frozen_copy() if state["weights"] else None
        if frozen is not None:
            try:
                frozen.load_state_dict(state["weights"])
            except RuntimeError as error:
                said = " ".join(str(error).split())
                raise PskdError(f"state: the snapshot's weights are those of another model: {said}") from error
        self._epoch, self._step, self._renewals = state["epoch"], state["step"], state["renewals"]
        self._copy, self._behind = frozen, True

    @torch.no_grad()
    def _follow(self) -> None:
        """Bring a copy that follows the model to where it has to be in this step."""
        if self.ema is None or not self._behind:
            return
        self._behind = False
        followed, self._renewals = self._renewals, self._renewals + 1
        if self._copy is None:
            self._copy = self._frozen_copy()
            return
        decay = min(self.ema, followed / (followed + 1))
        ours, theirs = _weights(self._copy), _weights(unwrap_model(self._model))
        floating = [own.is_floating_point() for own in ours]
        if any(floating):  # a model may have no weights at all
            torch._foreach_lerp_(list(compress(ours, floating)), list(compress(theirs, floating)), 1 - decay)
        for own, model, mean in zip(ours, theirs, floating, strict=True):
            if not mean:
                own.copy_(model)

    def _renew_if_due(self) -> None:
        if self.ema is not None:
            return
        # An epoch that is longer than it was said to be must not run ahead of the next one.
        steps = self._steps_per_epoch or 1
        progress = self._epoch + min(self._step, steps - 1) / steps
        due = math.floor(progress / self._refresh + 1e-9)
        if due <= self._renewals:
            return
        self._renewals = due
        if self._copy is None:
            self._copy = self._frozen_copy()
        else:
            self._copy.load_state_dict(self.model.state_dict())
        self._share_buffers(self._copy)

    @staticmethod
    def _share_buffers(frozen: nn.Module) -> None:
        """Batch statistics are each process's own within an epoch."""
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            for buffer in frozen.buffers():
                dist.broadcast(buffer, 0)

    def _frozen_copy(self) -> nn.Module:
        model = self.model
        gradients = [parameter.grad for parameter in model.parameters()]
        try:
            for parameter in model.parameters():
                parameter.grad = None  # or they would be copied too
            frozen = copy.deepcopy(model)
        finally:
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.grad = gradient
        return frozen.requires_grad_(False).eval()


class _SnapshotStep(MemoryStep):
    def __init__(self, memory: Snapshot, key: Any, recalls: bool) -> None:
        super().__init__(memory, key, recalls)
        self._snapshot, self._counted, self._ran = memory, False, not recalls
        self._output: Output | None = None

    def check(self, part: Part | None, logits: Tensor) -> None:
        return

    def past(self, part: Part | None, *, labels: Tensor | None = None, take: Tensor | None = None) -> Past | None:
        if not self._ran:
            self._output, self._ran = self._snapshot._output(self._key), True
        return _predictions(self._output, part)

    def record(
        self,
        part: Part | None,
        logits: Tensor,
        *,
        labels: Tensor | None = None,
        take: Tensor | None = None,
        normalised: bool = False,
    ) -> None:
        if not self._counted:
            self._snapshot.record(self._key, logits)
        self._counted = True


def _weights(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


@torch.no_grad()
def _predictions(output: Output | None, part: Part | None) -> Past | None:
    """The softmax of what a model returned for a batch, of all of it or of one part."""
    if output is None:
        return None
    if isinstance(output, LinearHead):
        logits = (output if part is None else output.part(part)).logits()
    elif part is None:
        logits = output
    else:
        raise PskdError("inputs: the snapshot's model returns logits, but a LinearHead was given: return that too")
    return Past(torch.softmax(logits, 1, accumulation_dtype(logits.dtype)))


def unwrap_model(model: nn.Module) -> nn.Module:
    """The model inside the wrappers of ``torch.compile`` and DistributedDataParallel, in any order."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            inner = model.module
        if inner is None:
            return model
        model = inner
