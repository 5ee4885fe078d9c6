"""What every memory of past predictions can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor

from pskd.linear_head import Part
from pskd.targets import Past


class Memory(ABC):
    """The past of a model. ``key`` is what a prediction is remembered by; ``needs`` names it: "index" or "inputs"."""

    needs: ClassVar[str]
    shards: int = 1  # hosts over which its state is spread; with one, every process has all of it

    @abstractmethod
    def start_epoch(self, epoch: int) -> None:
        """A 0-based epoch begins; the one before has ended."""

    @abstractmethod
    def recall(self, key: Any, *, labels: Tensor | None = None, take: Tensor | None = None) -> Past | None:
        """The past predictions, the class on dimension 1; None where there are none at all yet.

        ``labels`` are class indices to check the memory against; where ``take`` is false, what is returned is not used.
        """

    @abstractmethod
    def record(self, key: Any, logits: Tensor, *, labels: Tensor | None = None, take: Tensor | None = None) -> None:
        """Remember this step's predictions where ``take`` is true, from the student's logits (B, K, ...)."""

    def by_part(self, key: Any, *, recalls: bool) -> Callable[[Part], Any]:
        """The keys of parts of a batch, whose logits come from a ``LinearHead``; called once a step.

        ``recalls`` is false where nothing will be recalled in this step.
        """
        return lambda part: part.of(key)

    @abstractmethod
    def clear(self) -> None:
        """Forget everything: a training begins."""

    def check(self, key: Any, logits: Tensor) -> None:
        """Raise where the key or the logits do not fit this memory."""
        return

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed training needs, as tensors, numbers and strings."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None: ...
