"""One run's configuration: what all tasks share. Each task has a class of its own, in its own room."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import yaml
from pydantic import ConfigDict, SerializeAsAny

from pskd.settings import Place
from pskd.workbench.config.base import (
    DataConfig,
    EvalConfig,
    MethodConfig,
    ModelConfig,
    OptimConfig,
    Section,
    TrainConfig,
)

END = "# end of settings\n"  # the last line of a whole file


class Config(Section):
    """One run, whole."""

    recipe: Annotated[str | None, Place()] = None
    scale: Literal["full", "laptop"] = "full"
    task: str
    data: DataConfig
    model: ModelConfig
    method: SerializeAsAny[MethodConfig]
    optim: OptimConfig = OptimConfig()
    train: TrainConfig = TrainConfig()
    eval: EvalConfig = EvalConfig()

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False) + END


class UncheckedData(DataConfig):
    model_config = ConfigDict(frozen=True, extra="allow")


class UncheckedConfig(Config):
    """A run of a task that is code of somebody's: its settings can be read and shown without importing it."""

    data: UncheckedData
    augment: dict[str, Any] = {}  # noqa: RUF012
