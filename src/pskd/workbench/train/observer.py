"""What may look on while a model is trained, without being known to the loop by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import torch

from pskd.methods.base import Method
from pskd.workbench import registry
from pskd.workbench.config import Config
from pskd.workbench.runs.folder import RunFolder
from pskd.workbench.runs.group import Group
from pskd.workbench.tasks.base import Shown, Task


class Observer(Protocol):
    """Is shown every real training batch, and has a state that checkpoints carry."""

    def batch(self, shown: Shown) -> None:
        """A training batch was learnt."""

    def end_epoch(self, group: Group) -> None: ...

    def state(self, group: Group) -> Any:
        """What a resumed run needs of the epoch so far, of all processes together."""

    def load(self, state: Any) -> None:
        """Go on with an epoch; on the leader only."""

    def cut(self, epochs: int) -> None:
        """Drop what was written past the first ``epochs``: a resumed run will write it again."""


class MakesObserver(Protocol):
    """What is registered in ``registry.observers``; None: there is nothing to observe in this run."""

    def __call__(self, folder: Path, task: Task, method: Method, device: torch.device) -> Observer | None: ...


def observers_of(
    config: Config, run: RunFolder, task: Task, method: Method, device: torch.device
) -> dict[str, Observer]:
    """The observers that the settings ask for, by name."""
    wanted = ["history"] if config.train.history else []
    made = {name: registry.observers.find(name)(run.path, task, method, device) for name in wanted}
    return {name: observer for name, observer in made.items() if observer is not None}
