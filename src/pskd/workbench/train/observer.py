"""Observers see every training batch. The loop finds them by the registry and knows none by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import torch

from pskd.methods.base import Method
from pskd.workbench import registry
from pskd.workbench.runs.group import Group
from pskd.workbench.tasks.base import Shown, Task


class Observer(Protocol):
    """What a function registered in ``registry.observers`` returns. Checkpoints carry its state."""

    def batch(self, shown: Shown) -> None:
        """The model was trained on this batch."""

    def end_epoch(self, group: Group) -> None: ...

    def state(self, group: Group) -> Any:
        """What a resumed run needs of the epoch so far, of all processes together."""

    def load(self, state: Any) -> None:
        """Restore the state of an unfinished epoch; called on the leader only."""

    def cut(self, epochs: int) -> None:
        """Drop what was written after the first ``epochs``: a resumed run writes it again."""


def make_observers(folder: Path, task: Task, method: Method, device: torch.device) -> dict[str, Observer]:
    """All registered observers by name, without those that return None: they have nothing to do in this run."""
    made = {name: registry.observers.find(name)(folder, task, method, device) for name in registry.observers.names()}
    return {name: observer for name, observer in made.items() if observer is not None}
