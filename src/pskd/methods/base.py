"""What every method of teaching a model can do."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

import torch
from torch import Tensor, nn

from pskd.checks import ValueChecks
from pskd.errors import PskdError
from pskd.linear_head import LinearHead, Output, Part, reduced_over_parts
from pskd.settings import Setting, described, nearest, settings_of
from pskd.targets import Past, Reduction, Targets, check_reduction, per_position, reduced
from pskd.tensors import to_device

IGNORE_INDEX = -100  # a position with this label takes no part in any method
NEEDS = (
    *("index", "inputs", "partner_logits", "teacher_logits"),
    *("view", "view_logits", "last_logits", "head_logits", "head_features"),
)

ClassWeight: TypeAlias = Tensor | Sequence[float] | None
"""(K), what a sample of each class counts; None: all the same."""


class Loss(NamedTuple):
    """A batch's loss, to call ``backward`` on, and what it is the sum of, by name and without gradient.

    All of them are reduced as the method was told: the mean, the sum, or one per label (B, d1, ...).
    """

    total: Tensor
    parts: dict[str, Tensor]


@dataclass(frozen=True)
class Surroundings:
    """The training that a method is made for: what is known of it before the first step.

    Args:
        epochs: the length of the training.
        num_classes: classes of the model.
        num_samples: rows that a bank needs: training samples, in translation tokens.
        steps_per_epoch: calls of the method in an epoch.
        model: the model in training.
        fingerprint: identity of the training data.
        path: a scratch file that the processes of this host share; None: there is one process.
        host, hosts: this machine, and how many there are.
        class_weight: (K), what a sample of each class counts; None: all the same.
        seed: of the run.
    """

    epochs: int
    num_classes: int
    num_samples: int
    steps_per_epoch: int
    model: nn.Module
    fingerprint: str | None
    path: Path | None
    host: int = 0
    hosts: int = 1
    class_weight: Tensor | None = None
    seed: int = 0


class Method(ABC):
    """A loss with a memory of its own. It never runs the student, samples data or trains a teacher.

    What it has to be given beside output and targets stands in ``needs``: names of ``NEEDS``, or names of its own.

    Args:
        reduction: "mean", "sum" or "none", as in ``F.cross_entropy``.
        weight: (K), a weight per class, as in ``F.cross_entropy``: each class's term of a cross-entropy is multiplied
            by its weight, whatever the target is made of, and a mean over class indices is divided by the sum of the
            labels' weights, over class probabilities by their number. A term that compares whole distributions counts
            with the weight of its label.
    """

    name: ClassVar[str]
    title: ClassVar[str] = ""  # its name for people; empty: the one it is registered by
    needs: frozenset[str] = frozenset()
    plain: ClassVar[bool] = False  # its targets are the labels as they are: the baseline of a comparison
    shares_mix: ClassVar[bool] = False  # with Cutout, CutMix or Mixup, half of a batch is distilled, the other mixed
    takes_heads: ClassVar[bool] = False  # works part by part on a LinearHead
    python_only: ClassVar[tuple[str, ...]] = ()  # keywords of the constructor that are no settings of a configuration
    takes_weight: ClassVar[bool] = False  # obeys ``weight`` and ``reduction``
    reduction: Reduction = "mean"
    weight: Tensor | None = None
    # Is shown logits, targets, past predictions and alpha, one number, of every batch that has a past.
    watch: Callable[[Tensor, Targets, Past, float | Tensor], None] | None = None
    strict: bool = True  # whether logits that are not finite raise; if not, the loss is NaN and no row is written

    def __init__(self, *, reduction: Reduction = "mean", weight: ClassWeight = None) -> None:
        check_reduction(reduction)
        if not self.takes_weight and (reduction != "mean" or weight is not None):
            raise PskdError(f"{type(self).__name__} takes neither reduction nor weight: it is a mean over all classes")
        self.reduction, self.weight = reduction, _checked_weight(weight)
        self._checks = ValueChecks()

    def __repr__(self) -> str:
        return described(self)

    def weight_at(self, logits: Tensor) -> Tensor | None:
        """The class weights, where the logits are."""
        if self.weight is not None and self.weight.device != logits.device:
            self.weight = to_device(self.weight, logits.device)
        return self.weight

    @property
    def shards(self) -> int:
        """Over how many hosts its state is spread; with one, the state of any process is all of it."""
        return 1

    @property
    def needs_whole_model(self) -> str | None:
        """Why its model cannot be spread over processes, and what to do; None: it can."""
        return None

    @property
    def advice(self) -> str | None:
        """A line to whoever begins a training for which it is known to do harm as it is set; None: it is not."""
        return None

    def logged(self) -> dict[str, float]:
        """What an epoch's record shows of it."""
        return {}

    @classmethod
    def settings(cls) -> dict[str, Setting]:
        """What a configuration may say: the keywords of the constructor and of ``from_settings``, which go first."""
        made = settings_of(cls.from_settings, leave_out=("around",))
        parameters = inspect.signature(cls.from_settings).parameters.values()
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            return made
        given = {field.name for field in fields(Surroundings)}.union(cls.python_only)
        return settings_of(cls, leave_out=given.union(("reduction", "weight") if cls.takes_weight else ())) | made

    @classmethod
    def from_settings(cls, around: Surroundings, **settings: Any) -> Self:
        """The method for a training, from its settings; what the constructor asks of the training, it is given."""
        asked = inspect.signature(cls).parameters
        known = {field.name: getattr(around, field.name) for field in fields(around) if field.name in asked}
        if around.class_weight is not None:
            if not cls.takes_weight:
                raise PskdError(f"method={cls.name} takes no class weights: leave method.class_weight out")
            known["weight"] = around.class_weight
        return cls(**(known | settings))

    def start_epoch(self, epoch: int) -> None:
        """A 0-based epoch begins; this also ends the one before."""
        return

    @abstractmethod
    def loss(self, output: Output, targets: Targets, *, distilled: Tensor | None = None) -> Loss:
        """The loss of one training batch; what the method ``needs`` are further keywords.

        Args:
            output: logits (B, K, d1, ...), or a ``LinearHead`` with class indices as targets.
            targets: class indices (B, d1, ...), class probabilities, or a mixed pair ``(a, b, lam)``.
            distilled: (B) or one per label; where false, the label alone teaches.
        """

    def __call__(self, logits: Output, targets: Targets, *, distilled: Tensor | None = None, **needs: Any) -> Tensor:
        """``loss(...).total``: what a training loop calls.

        Of the names in ``NEEDS``, those that this method does not need are passed over, so that one loop serves all
        methods.
        """
        return self.loss(logits, targets, distilled=distilled, **self._needed(needs)).total

    def _needed(self, given: Mapping[str, Any]) -> dict[str, Any]:
        needed = {}
        for name, value in given.items():
            if name in self.needs:
                needed[name] = value
            elif name not in NEEDS:
                taken = ("distilled", *sorted(self.needs))
                own = f"{type(self).__name__} takes {', '.join(taken)}"
                raise PskdError(f"{name}: unknown{nearest(name, taken)} ({own})")
        return needed

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed training needs, as tensors, numbers and strings."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take a state back; one that does not fit is refused and changes nothing."""
        return


def batch_loss(
    output: Output,
    targets: Targets,
    distilled: Tensor | None,
    losses: Callable[[Tensor, Targets, Tensor | None, Part | None], tuple[Tensor, Tensor]],
    reduction: Reduction = "mean",
) -> Tensor:
    """What ``losses(logits, targets, distilled, part)`` makes, losses and shares of the positions, reduced.

    Logits are handed to it whole, with None as part; those of a head part by part, as (n, K), with what belongs to it.
    Only "none" makes a head's logits whole too: their gradient is not known before the backward pass.
    """
    if reduction == "none":
        output = whole_logits(output)
    if not isinstance(output, LinearHead):
        each, share = losses(output, targets, distilled, None)
        return reduced(each, share, reduction)
    if not isinstance(targets, Tensor) or targets.shape != output.positions or targets.is_floating_point():
        given = tuple(targets.shape) if isinstance(targets, Tensor) else "a mixed pair"
        raise PskdError(f"targets: a LinearHead of {tuple(output.positions)} wants class indices like it, got {given}")
    labels = targets

    def of_part(logits: Tensor, part: Part) -> tuple[Tensor, Tensor]:
        return losses(logits, part.of(labels), None if distilled is None else part.of(distilled), part)

    return reduced_over_parts(output, of_part, reduction == "mean")


def whole_logits(output: Output) -> Tensor:
    """Logits (B, K, ...), for methods that need all at once."""
    return output.logits() if isinstance(output, LinearHead) else output


def distilled_mask(distilled: Tensor | None, logits: Tensor) -> Tensor | None:
    """``distilled``, (B) or one per label, as a mask (B, d1, ...); None: all are."""
    if distilled is None:
        return None
    positions = (logits.shape[0], *logits.shape[2:])
    if tuple(distilled.shape) not in (positions, positions[:1]):
        raise PskdError(f"distilled has shape {tuple(distilled.shape)}; one per sample or label is {positions}")
    return per_position(distilled, logits) != 0


def _checked_weight(weight: ClassWeight) -> Tensor | None:
    if weight is None:
        return None
    made = torch.as_tensor(weight).detach()
    made = made if made.is_floating_point() else made.float()
    if made.ndim != 1 or not bool((made.isfinite() & (made >= 0)).all()):
        raise PskdError(f"weight must be one number per class (K), 0 or more, got {weight}")
    return made
