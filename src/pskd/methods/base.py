"""What every method of teaching a model can do."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, TypeAlias

import torch
from torch import Tensor

from pskd.checks import ValueChecks
from pskd.door import Batch, check_reduction, door, reduce
from pskd.errors import PskdError
from pskd.linear_head import LinearHead, Output, Part, reduce_over_parts
from pskd.memory.base import Memory
from pskd.methods.card import Card
from pskd.methods.clock import Clock
from pskd.settings import check_arguments, described, nearest
from pskd.targets import Reduction, Targets
from pskd.tensors import to_device

NEEDS = (
    *("index", "inputs", "partner_logits", "teacher_logits"),
    *("view", "view_logits", "last_logits", "head_logits", "head_features"),
)

ClassWeight: TypeAlias = Tensor | Sequence[float] | None
"""(K), what a sample of each class counts; None: all the same."""

Terms: TypeAlias = Mapping[str, Tensor]
"""What a loss is the sum of, by name: for each position one number, (n)."""


class Loss(NamedTuple):
    """A batch's loss, to call ``backward`` on, and what it is the sum of, by name and without gradient.

    All of them are reduced as the method was told: the mean, the sum, or one per label (B, d1, ...).
    """

    total: Tensor
    parts: dict[str, Tensor]


@dataclass(eq=False, repr=False)
class Method(ABC):
    """A loss with a memory of its own. It never runs the student, samples data or trains a teacher.

    What it has to be given beside output and targets stands in ``needs``: names of ``NEEDS``, or names of its own. One
    with a field ``epochs`` knows by its ``clock`` how far the training is, one with a field ``memory`` remembers
    predictions. Fields are its settings.

    Args:
        reduction: "mean", "sum" or "none", as in ``F.cross_entropy``.
        weight: (K), a weight per class, as in ``F.cross_entropy``: each class's term of a cross-entropy is multiplied
            by its weight, whatever the target is made of, and a mean over class indices is divided by the sum of the
            labels' weights, over class probabilities by their number. A term that compares whole distributions counts
            with the weight of its label.
    """

    name: ClassVar[str]
    card: ClassVar[Card] = Card()  # what the command line wants to know of it
    needs = frozenset[str]()
    takes_heads: ClassVar[bool] = False  # works part by part on a LinearHead
    takes_weight: ClassVar[bool] = False  # takes ``weight`` and ``reduction``
    clock: Any = field(init=False, default=None)  # a Clock, where there are epochs
    memory: Any = field(init=False, default=None)  # a Memory, where predictions are remembered

    reduction: Reduction = field(default="mean", kw_only=True)
    weight: ClassWeight = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        settings, self.checks = vars(self), ValueChecks()
        check_arguments(type(self).__init__, settings)
        check_reduction(self.reduction)
        if not self.takes_weight and (self.reduction != "mean" or self.weight is not None):
            raise PskdError(f"{type(self).__name__} takes neither reduction nor weight: it is a mean over all classes")
        self.weight = _checked_weight(self.weight)
        if (epochs := settings.get("epochs")) is not None:
            self.clock = Clock(epochs, owner=type(self).__name__)
        if type(self).__dataclass_fields__["memory"].init:
            memory = settings["memory"]
            if not isinstance(memory, Memory):
                raise PskdError(f"memory must be a pskd.PredictionBank or a pskd.Snapshot, got {type(memory).__name__}")
            self.needs = self.needs | {memory.needs}

    @cached_property
    def checks(self) -> ValueChecks:
        """Wrong values that were found and not yet raised. A method of a user's own need not call our constructor."""
        return ValueChecks()

    def __repr__(self) -> str:
        return described(self)

    def __call__(self, logits: Output, targets: Targets, *, distilled: Tensor | None = None, **needs: Any) -> Tensor:
        """``loss(...).total``: what a training loop calls.

        Of the names in ``NEEDS``, those that this method does not need are passed over, so that one loop serves all
        methods.
        """
        return self.loss(logits, targets, distilled=distilled, **self._needed(needs)).total

    @abstractmethod
    def loss(self, output: Output, targets: Targets, *, distilled: Tensor | None = None) -> Loss:
        """The loss of one training batch; what the method ``needs`` are further keywords.

        Args:
            output: logits (B, K, d1, ...), or a ``LinearHead`` with class indices as targets.
            targets: class indices (B, d1, ...), class probabilities, or a mixed pair ``(a, b, lam)``.
            distilled: (B) or one per label; where false, the label alone teaches.
        """

    def start_epoch(self, epoch: int) -> None:
        """Begin the 0-based ``epoch``, which ends the one before; the first is 0, or follows a loaded state."""
        if self.clock is None:
            return
        epoch = self.clock.check_epoch(epoch)
        self.settle()
        self.begin(epoch, again=epoch == self.clock.last)
        if self.memory is not None:
            if self.clock.last is None:
                self.memory.clear()  # it may have served another training
            self.memory.start_epoch(epoch)
        self.clock.begin(epoch)
        self.checks.when = f" in epoch {epoch} (counted from 0)"

    def begin(self, epoch: int, *, again: bool) -> None:
        """What an epoch's beginning means here; ``again``: it had begun when its state was saved."""
        return

    @property
    def epoch(self) -> int:
        """The current epoch, from 0."""
        if self.clock is None:
            raise PskdError(f"{type(self).__name__} knows of no epochs")
        return int(self.clock.now)

    def batch_loss(
        self,
        output: Output,
        targets: Targets,
        distilled: Tensor | None,
        terms: Callable[[Batch], Terms],
    ) -> Loss:
        """What ``terms`` makes of the batch behind the door, summed and reduced.

        Logits are handed to it whole. A ``LinearHead`` is, where the method takes one, part by part; only "none" makes
        its logits whole too, since their gradient is not known before the backward pass.
        """
        if isinstance(output, LinearHead) and self.takes_heads and self.reduction != "none":
            return self._loss_of_head(output, targets, distilled, terms)
        batch = self.door(output, targets, distilled)
        return self.reduced(batch, terms(batch))

    def door(self, output: Output, targets: Targets, distilled: Tensor | None) -> Batch:
        """The batch behind the door, with whole logits."""
        if self.checks.pending:
            self.checks.settle()
        logits = output.logits() if isinstance(output, LinearHead) else output
        weight = None if self.weight is None else self.weight_at(logits.device)
        return door(logits, targets, distilled, weight=weight, checks=self.checks)

    def reduced(self, batch: Batch, terms: Terms, share: Tensor | None = None) -> Loss:
        """The sum of a loss's terms (n), reduced, and each of them without gradient.

        ``share`` (n) is what a position counts in a mean, if that is not what the batch says.
        """
        share = batch.share if share is None else share
        parts = {name: reduce(term, share, self.reduction, batch.positions) for name, term in terms.items()}
        total, *others = parts.values()
        for other in others:
            total = total + other
        if self.checks.pending:
            self.checks.send()
        return Loss(total, {name: part.detach() for name, part in parts.items()})

    def _loss_of_head(
        self, head: LinearHead, targets: Targets, distilled: Tensor | None, terms: Callable[[Batch], Terms]
    ) -> Loss:
        if not isinstance(targets, Tensor) or targets.shape != head.positions or targets.is_floating_point():
            given = tuple(targets.shape) if isinstance(targets, Tensor) else "a mixed pair"
            raise PskdError(
                f"targets: a LinearHead of {tuple(head.positions)} wants class indices like it, got {given}"
            )
        self.checks.settle()
        labels, names = targets, [""]
        weight = self.weight_at(head.hidden.device)

        def of_part(logits: Tensor, part: Part) -> tuple[Tensor, Tensor | None]:
            mask = None if distilled is None else part.of(distilled)
            batch = door(logits, part.of(labels), mask, weight=weight, checks=self.checks, part=part)
            ((names[0], term),) = terms(batch._replace(positions=tuple(part.positions))).items()
            return term, batch.share

        total = reduce_over_parts(head, of_part, self.reduction == "mean")
        self.checks.send()
        return Loss(total, {names[0]: total.detach()})

    def weight_at(self, device: torch.device) -> Tensor | None:
        """The class weights on a device."""
        if isinstance(self.weight, Tensor) and self.weight.device != device:
            self.weight = to_device(self.weight, device)
        assert self.weight is None or isinstance(self.weight, Tensor)
        return self.weight

    def settle(self) -> None:
        """Raise for wrong values that were found and not yet raised; this waits for the device."""
        self.checks.settle()
        self.checks.settle_graphs()

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed training needs; tensors are views, so save them before the next step."""
        self.settle()
        state = {} if self.clock is None else self.clock.state_dict()
        return state if self.memory is None else {**state, "memory": self.memory.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue in the epoch that was saved or after it; a state that does not fit is refused."""
        if missing := sorted(set(self.state_dict()) - set(state)):
            raise PskdError(
                f"state: it is not that of {type(self).__name__}, which has {missing[0]}; use the method that was saved"
            )
        if self.memory is not None:
            self.memory.load_state_dict(state["memory"])
        self.load_own(state)
        if self.clock is not None:
            self.clock.load_state_dict(state)

    def load_own(self, state: dict[str, Any]) -> None:
        """Take back what stands beside epoch and memory."""
        return

    def _needed(self, given: Mapping[str, Any]) -> dict[str, Any]:
        needed = {}
        for name, value in given.items():
            if name in self.needs:
                needed[name] = value
            elif name not in NEEDS:
                known = ("distilled", *sorted(self.needs))
                own = f"{type(self).__name__} takes {', '.join(known)}"
                raise PskdError(f"{name}: unknown{nearest(name, known)} ({own})")
        return needed


def _checked_weight(weight: ClassWeight) -> Tensor | None:
    if weight is None:
        return None
    made = torch.as_tensor(weight).detach()
    made = made if made.is_floating_point() else made.float()
    if made.ndim != 1 or not bool((made.isfinite() & (made >= 0)).all()):
        raise PskdError(f"weight must be one number per class (K), 0 or more, got {weight}")
    return made
