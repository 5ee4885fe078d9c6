"""What every memory of past predictions can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor

from pskd.door import Batch
from pskd.settings import described
from pskd.targets import Past


class Memory(ABC):
    """The past of a model. ``needs`` names what its predictions are found by: "index" or "inputs".

    A step asks for a ``key`` once; with it every part of the batch is read, and written afterwards.
    """

    needs: ClassVar[str]
    shards: int = 1  # hosts over which its state is spread; with one, every process has all of it

    @property
    def device(self) -> torch.device:
        """Where it is kept."""
        return torch.device("cpu")

    @abstractmethod
    def start_epoch(self, epoch: int) -> None:
        """A 0-based epoch begins; the one before has ended."""

    def start_step(self, step: int) -> None:
        """A 0-based step of a training without epochs begins."""
        if step == 0:
            self.start_epoch(0)

    @abstractmethod
    def key(self, *, index: Any = None, inputs: Any = None) -> Any:
        """What a step is read and written by: made of the index, or of the inputs."""

    @abstractmethod
    def read(self, key: Any, batch: Batch) -> Past | None:
        """The past predictions of the batch's positions; None where there are none at all yet."""

    @abstractmethod
    def write(self, key: Any, batch: Batch, log_p: Tensor | None = None, past: Past | None = None) -> None:
        """Remember predictions where the batch is distilled: its own, or ``log_p`` (n, K) instead.

        ``past`` is what was read for the same batch.
        """

    @abstractmethod
    def clear(self) -> None:
        """Forget everything: a training begins."""

    def to(self, device: str | torch.device) -> Memory:
        """Move what is kept to a device; returns itself."""
        return self

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed training needs, as tensors, numbers and strings."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None: ...

    def __repr__(self) -> str:
        return described(self)


def shards_of(memory: Memory | None) -> int:
    """Over how many hosts a memory's state is spread; with one, that of any process is all of it."""
    return 1 if memory is None else memory.shards
