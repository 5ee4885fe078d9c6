"""What every memory of past predictions can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from torch import Tensor

from pskd.linear_head import Part
from pskd.settings import described
from pskd.targets import Past


class MemoryStep:
    """One training step's dealings with a memory: of the whole batch (part None), or of a head's parts in turn."""

    def __init__(self, memory: Memory, key: Any, recalls: bool) -> None:
        self._memory, self._key, self._recalls = memory, key, recalls
        self._part: tuple[Part, Any] | None = None  # the last part and its key: what is recalled is recorded next

    def check(self, part: Part | None, logits: Tensor) -> None:
        """Raise where key or logits (B, K, ...) do not fit the memory."""
        self._memory.check(self._key_of(part), logits)

    def past(self, part: Part | None, *, labels: Tensor | None = None, take: Tensor | None = None) -> Past | None:
        """The past predictions of the part; None where there are none."""
        return self._memory.recall(self._key_of(part), labels=labels, take=take) if self._recalls else None

    def record(
        self,
        part: Part | None,
        logits: Tensor,
        *,
        labels: Tensor | None = None,
        take: Tensor | None = None,
        normalised: bool = False,
    ) -> None:
        """Remember the part's predictions."""
        self._memory.record(self._key_of(part), logits, labels=labels, take=take, normalised=normalised)

    def _key_of(self, part: Part | None) -> Any:
        if part is None:
            return self._key
        if self._part is None or self._part[0] is not part:
            self._part = part, part.of(self._key)
        return self._part[1]


class Memory(ABC):
    """The past of a model. ``key`` is what a prediction is remembered by; ``needs`` names it: "index" or "inputs"."""

    needs: ClassVar[str]
    shards: int = 1  # hosts over which its state is spread; with one, every process has all of it

    @abstractmethod
    def start_epoch(self, epoch: int) -> None:
        """A 0-based epoch begins; the one before has ended."""

    def start_step(self, step: int) -> None:
        """A 0-based step of a training without epochs begins."""
        if step == 0:
            self.start_epoch(0)

    @abstractmethod
    def recall(self, key: Any, *, labels: Tensor | None = None, take: Tensor | None = None) -> Past | None:
        """The past predictions, the class on dimension 1; None where there are none at all yet.

        ``labels`` are class indices to check the memory against; where ``take`` is false, what is returned is not used.
        """

    @abstractmethod
    def record(
        self,
        key: Any,
        logits: Tensor,
        *,
        labels: Tensor | None = None,
        take: Tensor | None = None,
        normalised: bool = False,
    ) -> None:
        """Remember this step's predictions where ``take`` is true, from the student's logits (B, K, ...).

        ``normalised``: these are log-probabilities, whose exponential is the softmax.
        """

    def step(self, key: Any, *, recalls: bool) -> MemoryStep:
        """What a training step asks of this memory; ``recalls`` is false where the step has no past."""
        return MemoryStep(self, key, recalls)

    @abstractmethod
    def clear(self) -> None:
        """Forget everything: a training begins."""

    def check(self, key: Any, logits: Tensor) -> None:
        """Raise where the key or the logits do not fit this memory."""
        return

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed training needs, as tensors, numbers and strings."""

    def __repr__(self) -> str:
        return described(self)

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None: ...
