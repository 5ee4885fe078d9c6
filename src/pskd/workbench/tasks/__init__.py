"""What is learnt: one room per task, loaded when it is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pskd.workbench import registry

if TYPE_CHECKING:
    from pskd.workbench.config import Config
    from pskd.workbench.tasks.base import Task


def create(config: Config) -> Task:
    """The task of a configuration, its data loaded."""
    task: Task = registry.tasks.find(config.task)(config)
    return task
