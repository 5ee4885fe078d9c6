"""One run's configuration: what all tasks share. Each task has a module of its own beside this one."""

from __future__ import annotations

from typing import Literal

import yaml

from pskd.config.base import DataConfig, EvalConfig, ModelConfig, OptimConfig, Section, TrainConfig
from pskd.config.methods import MethodConfig, PSKDConfig


class Config(Section):
    """One run, whole."""

    recipe: str | None = None
    scale: Literal["full", "laptop"] = "full"
    task: str
    data: DataConfig
    model: ModelConfig
    method: MethodConfig = PSKDConfig()
    optim: OptimConfig = OptimConfig()
    train: TrainConfig = TrainConfig()
    eval: EvalConfig = EvalConfig()

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)
