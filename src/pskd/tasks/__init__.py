"""What is learnt: one module per task, loaded when it is needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pskd.errors import PskdError

if TYPE_CHECKING:
    from pskd.config import Config
    from pskd.tasks.base import Answer, Task


def create(config: Config) -> Task:
    """The task of a configuration, its data loaded."""
    task: Task = import_module(f"pskd.tasks.{config.task}").create(config)
    return task


def predict(run: Path, inputs: Sequence[str], **options: Any) -> Iterator[Answer | PskdError]:
    """What the finished run in ``run`` makes of each input; one that cannot be read yields its error instead."""
    from pskd.runs.folder import RunFolder

    answers: Iterator[Answer | PskdError]
    answers = import_module(f"pskd.tasks.{RunFolder(run).config().task}").predict(run, inputs, **options)
    return answers
