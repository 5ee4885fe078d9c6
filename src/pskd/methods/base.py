"""What every method of teaching a model can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from pskd.errors import PskdError
from pskd.linear_head import LinearHead, Output, Part, mean_over_parts
from pskd.targets import Targets, per_position

IGNORE_INDEX = -100  # a position with this label takes no part in any method


class Loss(NamedTuple):
    """A batch's mean loss, to call ``backward`` on, and what it is the sum of, by name and without gradient."""

    total: Tensor
    parts: dict[str, Tensor]


class Method(ABC):
    """A loss with a memory of its own. It never runs the student, samples data or trains a teacher.

    What it has to be given beside output and labels stands in ``needs``: of "index", "inputs", "partner_logits",
    "teacher_logits".
    """

    name: ClassVar[str]
    needs: frozenset[str] = frozenset()

    @property
    def shards(self) -> int:
        """Over how many hosts its state is spread; with one, the state of any process is all of it."""
        return 1

    def start_epoch(self, epoch: int) -> None:
        """A 0-based epoch begins; this also ends the one before."""
        return

    @abstractmethod
    def loss(self, output: Output, targets: Targets, *, distilled: Tensor | None = None, **needs: Any) -> Loss:
        """The loss of one training batch; samples where ``distilled`` (B) is false are taught by their label alone.

        ``output`` is logits, or a ``LinearHead`` with class indices as targets.
        """

    def __call__(self, logits: Output, targets: Targets, **needs: Any) -> Tensor:
        """``loss(...).total``: what a training loop calls."""
        return self.loss(logits, targets, **needs).total

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed training needs, as tensors, numbers and strings."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        return


def mean_loss(
    output: Output,
    targets: Targets,
    distilled: Tensor | None,
    losses: Callable[[Tensor, Targets, Tensor | None, Part | None], tuple[Tensor, Tensor]],
) -> Tensor:
    """The mean over positions of what ``losses(logits, targets, distilled, part)`` makes: losses and shares.

    Logits are handed to it whole, with None as part; those of a head part by part, as (n, K), with what belongs to it.
    """
    if not isinstance(output, LinearHead):
        each, share = losses(output, targets, distilled, None)
        return each.sum() / share.sum()
    if not isinstance(targets, Tensor) or targets.shape != output.positions or targets.is_floating_point():
        given = tuple(targets.shape) if isinstance(targets, Tensor) else "a mixed pair"
        raise PskdError(f"targets: a LinearHead of {tuple(output.positions)} wants class indices like it, got {given}")
    labels = targets

    def of_part(logits: Tensor, part: Part) -> tuple[Tensor, Tensor]:
        return losses(logits, part.of(labels), None if distilled is None else part.of(distilled), part)

    return mean_over_parts(output, of_part)


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
