"""What methods share that know how far the training is, and those that have a memory of past predictions."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

import torch
from torch import Tensor

from pskd.checks import outside
from pskd.errors import PskdError
from pskd.linear_head import Output
from pskd.memory.bank import PredictionBank
from pskd.memory.base import Memory, MemoryStep
from pskd.memory.snapshot import Snapshot
from pskd.methods.base import IGNORE_INDEX, ClassWeight, Method, Surroundings, distilled_mask
from pskd.settings import Count, Place, Setting, check_arguments
from pskd.targets import Past, Reduction, check_past

DENSE_UP_TO = 1000  # classes; above, form=auto keeps the top k

Form = Literal["auto", "dense", "topk"]
FloatName = Literal["float16", "bfloat16", "float32", "float64"]


class Paced(Method):
    """A method for a training of ``epochs`` epochs, which begin one after the other."""

    epochs: int
    _epoch: int | None = None  # the last one that began, here or in the state that was loaded
    _begun = False

    @property
    def epoch(self) -> int:
        """The current epoch, from 0."""
        if self._epoch is None or not self._begun:
            raise PskdError("start_epoch: call start_epoch(epoch) before the first batch of every epoch")
        return self._epoch

    def start_epoch(self, epoch: int) -> None:
        """Begin the 0-based ``epoch``; the first one is 0, or follows the state that was loaded."""
        before = self._epoch
        if epoch >= self.epochs:
            raise PskdError(
                f"start_epoch({epoch}) is past the last epoch: epochs={self.epochs}, so 0..{self.epochs - 1}"
            )
        if before is None and epoch != 0:
            raise PskdError(
                f"start_epoch({epoch}) comes first, but no state was loaded: start at 0, or load_state_dict()"
            )
        if before is not None and epoch not in (before, before + 1):
            raise PskdError(
                f"start_epoch({epoch}) cannot follow epoch {before}: go on with {before + 1}, or make a new"
                f" {type(self).__name__}"
            )
        self.begin(epoch, anew=before is None)
        self._epoch, self._begun = epoch, True

    def begin(self, epoch: int, *, anew: bool) -> None:
        """What an epoch's beginning means here; ``anew``: it is the first of a training."""
        return

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": -1 if self._epoch is None else self._epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue in the epoch that was saved or after it: ``start_epoch`` takes either."""
        if missing := sorted(set(self.state_dict()) - set(state)):
            raise PskdError(
                f"state: it is not that of {type(self).__name__}, which has {missing[0]}; use the method that was saved"
            )
        self._load(state)
        self._epoch, self._begun = state["epoch"] if state["epoch"] >= 0 else None, False

    def _load(self, state: dict[str, Any]) -> None:
        """Take back what stands beside the epoch."""
        return


class Remembering(Paced):
    """A method with a memory of past predictions."""

    memory: Memory

    def __init__(self, epochs: int | None, memory: Memory, *, reduction: Reduction, weight: ClassWeight) -> None:
        super().__init__(reduction=reduction, weight=weight)
        if not isinstance(memory, Memory):
            raise PskdError(f"memory must be a pskd.PredictionBank or a pskd.Snapshot, got {type(memory).__name__}")
        self.epochs, self.memory = epochs, memory  # type: ignore[assignment]  # None: it counts steps, not epochs
        self.needs = frozenset({memory.needs})

    @classmethod
    def settings(cls) -> dict[str, Setting]:
        """A memory is no setting; it is made from those that describe it."""
        found = super().settings()
        return {name: setting for name, setting in found.items() if not _is_memory(setting.annotation)}

    @property
    def shards(self) -> int:
        return self.memory.shards

    @property
    def needs_whole_model(self) -> str | None:
        whole = isinstance(self.memory, Snapshot)
        return "a snapshot is a whole copy of the model, take method.memory=bank" if whole else None

    def begin(self, epoch: int, *, anew: bool) -> None:
        self._checks.settle()
        if anew:
            self.memory.clear()  # it may have served another training
        self.memory.start_epoch(epoch)

    def step(self, output: Output, index: Tensor | None, inputs: Any = None, *, recalls: bool = True) -> MemoryStep:
        """This training step's dealings with the memory."""
        self._checks.settle()
        check_trains(output)
        key = index if self.memory.needs == "index" else inputs
        if key is None:
            needed, memory = self.memory.needs, type(self.memory).__name__
            raise PskdError(f"{needed} is missing: with a {memory}, call with {needed}=...")
        return self.memory.step(key, recalls=recalls)

    def state_dict(self) -> dict[str, Any]:
        """Epoch and memory; tensors are views, so save them before the next step."""
        self._checks.settle()
        return {**super().state_dict(), "memory": self.memory.state_dict()}

    def _load(self, state: dict[str, Any]) -> None:
        self.memory.load_state_dict(state["memory"])


class Banked(Remembering):
    """A method whose memory is a bank; called with ``index=``."""

    shares_mix = True
    takes_weight = True
    memory: PredictionBank

    @classmethod
    def from_settings(
        cls,
        around: Surroundings,
        *,
        form: Form = "auto",
        k: Count = 32,
        dtype: FloatName = "float16",
        path: Annotated[str | None, Place(written=True)] = None,
        **settings: Any,
    ) -> Self:
        """With the bank that the settings describe.

        Args:
            form: of a bank: "dense" keeps every class, "topk" the likeliest; "auto" is dense up to 1000 classes.
            k: classes that a top-k bank keeps of each sample.
            dtype: of a bank's rows.
            path: a scratch file for a bank's rows instead of RAM.
        """
        check_arguments(cls.from_settings, locals())
        memory = bank_for(around, form, k, dtype, path, max_age=None)
        return super().from_settings(around, memory=memory, **settings)


def _is_memory(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Memory)


def bank_for(
    around: Surroundings,
    form: Form = "auto",
    k: int = 32,
    dtype: FloatName = "float16",
    path: str | None = None,
    *,
    num_classes: int | None = None,
    **further: Any,
) -> PredictionBank:
    """A bank for a training, of rows as long as its classes are many or as is said."""
    classes = num_classes or around.num_classes
    return PredictionBank(
        around.num_samples,
        classes,
        form=form if form != "auto" else "dense" if classes <= DENSE_UP_TO else "topk",
        k=k,
        dtype=getattr(torch, dtype),
        path=path or around.path,
        fingerprint=around.fingerprint,
        host=around.host,
        hosts=around.hosts,
        **further,
    )


def check_trains(output: Output) -> None:
    """Raise where the logits have no gradient: whoever only evaluates must not teach the memory."""
    if not output.requires_grad:
        raise PskdError("logits have no gradient: call the method in training only, so that no row is overwritten")


def taken(logits: Tensor, labels: Tensor | None, distilled: Tensor | None) -> Tensor | None:
    """Where a memory is read and written, (B, d1, ...); None means everywhere."""
    real = None
    if labels is not None and outside(labels, logits.shape[1]) is not None:
        real = labels != IGNORE_INDEX
    wanted = distilled_mask(distilled, logits)
    if real is None or wanted is None:
        return wanted if real is None else real
    return real & wanted


def fitted(past: Past, logits: Tensor, take: Tensor | None) -> Past:
    """The past on the device of the logits, known only where ``take`` is true."""
    past = past.to(logits.device)
    if take is not None:
        past = Past(past.values, past.classes, take if past.known is None else take & past.known)
    check_past(logits, past)
    return past


def unbiased_momentum(momentum: float, seen: int) -> float:
    """What the nth value ``seen`` leaves of the mean of those before, so that no start value is in it.

    The mean is that of ``m <- momentum * m + (1 - momentum) * value`` from m = 0, divided by ``1 - momentum^n``.
    """
    return momentum * (1 - momentum ** (seen - 1)) / (1 - momentum**seen)
