"""A finished run, opened by one class from what is saved beside its weights: nothing is rebuilt from data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import nn

from pskd import registry
from pskd.config import Config
from pskd.errors import PskdError, blamed, folded
from pskd.models.modest import modest
from pskd.runs import weights
from pskd.runs.devices import usable_device
from pskd.runs.folder import RunFolder
from pskd.runs.group import Group


class About(BaseModel):
    """What was saved beside the weights: a task's own class adds to it."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    task: str
    model: dict[str, Any]
    version: str | None = None  # of pskd that saved it; None: 0.1


class Answer(ABC):
    """A model's answer to one input."""

    @abstractmethod
    def text(self) -> str:
        """For people."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """For machines."""


class Predictor(ABC):
    """A model with all that is needed to use it. ``Predictor.from_run`` opens one of whatever task.

    Args:
        run: the folder it comes from.
        about: what was saved beside its weights.
        model: with its weights, on ``device``, in evaluation mode.
    """

    about_class: ClassVar[type[About]] = About
    options: ClassVar[frozenset[str]] = frozenset()  # of ``predict``

    def __init__(self, run: Path, about: Any, model: nn.Module, device: torch.device) -> None:
        self.run, self.about, self.device = run, about, device
        self.model = model.to(device).eval()

    @staticmethod
    def from_run(
        run: Path, *, task: str | None = None, best: bool = False, device: str | None = None, allow_code: bool = False
    ) -> Predictor:
        """Open a finished run.

        Args:
            run: its folder.
            task: what it has to be a run of.
            best: the weights of the best epoch by the validation split instead of the last one's.
            device: by default that of the run if it is here, else the CPU.
            allow_code: import code that the folder names; a folder may come from a stranger.
        """
        path = weights.path_of(run, best=best)
        raw = weights.metadata(path)
        if task is not None and raw.get("task") != task:
            raise PskdError(f"{run} is a run of {raw.get('task')}, not of {task}")
        kind = registry.tasks.load(str(raw.get("task")), allow_code=allow_code).Predictor
        try:
            about = kind.about_class.model_validate(raw)
            with modest(copies=1):
                model = kind.build(about, allow_code=allow_code)
        except ValidationError as error:
            where = ".".join(str(part) for part in error.errors()[0]["loc"])
            raise PskdError(f"{path} does not say what model it holds ({where}: {error.errors()[0]['msg']})") from None
        except PskdError as error:
            raise PskdError(f"{path}: {error}") from error
        except Exception as error:  # whatever a library makes of options that a stranger wrote
            raise PskdError(f"{path}: its model cannot be built ({type(error).__name__}: {folded(error)})") from error
        weights.load(model, path)
        folder = RunFolder(run)
        wanted = device or (folder.config().train.device if folder.config_file.is_file() else "auto")
        with blamed(f"{path}: what is said of its model does not fit it"):
            predictor: Predictor = kind(run, about, model, usable_device(wanted))
        return predictor

    @classmethod
    @abstractmethod
    def build(cls, about: Any, *, allow_code: bool = False) -> nn.Module:
        """The model that ``about`` describes, for its weights to be read into."""

    @abstractmethod
    def predict(self, inputs: Sequence[str], **options: Any) -> Iterator[Answer | PskdError]:
        """What the model makes of each input; one that cannot be read yields its error instead."""

    def pictures(self, config: Config, which: Sequence[int], fingerprint: str) -> list[np.ndarray] | None:
        """Test samples as images, (H, W, C) uint8; None where the data has another fingerprint, or no pictures."""
        return None

    @abstractmethod
    def evaluate(self, config: Config, split: str, group: Group) -> dict[str, Any]:
        """Metrics on a split of the data that the configuration names, seen as the run's own data was."""
