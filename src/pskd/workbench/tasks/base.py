"""What the engine knows of a task, and all it knows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from pskd.errors import PskdError
from pskd.methods.base import Loss, Method
from pskd.names import Registry
from pskd.plan import Step, Stretch, epoch_plan
from pskd.targets import Targets
from pskd.workbench.config import Config
from pskd.workbench.runs.group import Group
from pskd.workbench.tasks.predictor import Predictor


class Evaluation(NamedTuple):
    """Metrics in the paper's units by name, and the predictions they were computed from (for predictions.npz).

    A metric is a number, or numbers by class.
    """

    metrics: dict[str, Any]
    predictions: dict[str, np.ndarray]
    signatures: dict[str, str] = {}  # noqa: RUF012  # how a metric was computed, where that has a name of its own
    examples: Sequence[str] = ()  # a few predictions in words, for the end of a run


class Shown(NamedTuple):
    """What an observer is shown of a training batch: samples (B), logits (B, K) without gradient, who was distilled."""

    index: Tensor  # type: ignore[assignment]
    logits: Tensor
    targets: Targets
    distilled: Tensor | None


class Task(ABC):
    """A data set and what is done with a batch of it. A subclass registers itself by ``registry.tasks.register``.

    ``providers`` says how each thing that a method may need is made of the model and a batch; what is made by a forward
    pass is made before the student's own.
    """

    Config: ClassVar[type[Config]]  # the settings of its runs
    Predictor: ClassVar[type[Predictor]]  # opens its finished runs
    default_method: ClassVar[str | None] = None  # None: what most tasks have, `config.DEFAULT_METHOD`
    data_sets: ClassVar[Registry | None] = None  # what data.name is one of, with that one's options as settings
    rows_by_host: ClassVar[bool] = True  # whether row i of a bank is always trained on host i % hosts, which keeps it
    needs_whole_model: ClassVar[str | None] = None  # why its model cannot be spread over processes, if it cannot
    shows_samples: bool = False  # whether `loss` has something for observers: one row of logits per sample
    unit: ClassVar[str]  # what a sample is called in "1,200 img/s"
    selects_by: ClassVar[str]  # the metric of `metrics.catalogue` that chooses the best epoch on the validation split

    config: Any  # the task's own kind of Config
    num_classes: int
    num_samples: int  # of the training set
    num_rows: int  # that a bank needs: one for each sample, or for each token
    fingerprint: str  # of the training data
    has_validation: bool
    notes: Sequence[str] = ()  # what the log shall say of data and model; the screen shows the first line
    providers: Mapping[str, Callable[[nn.Module, Any], Any] | None]  # None: ``loss`` makes it itself
    first_weights: str = ""  # what the model began with, in words
    begins: bool = True  # whether a model begins with its first weights; one that is resumed gets those of a checkpoint

    @classmethod
    def refuses(cls, method: type[Method]) -> str | None:
        """Why a method cannot teach this task; None: it can."""
        return None

    @property
    def sources(self) -> str:
        """Identity of all that a training reads: its data, and its teacher if it has one."""
        return self.fingerprint

    def about(self) -> str:
        """The training data in a few words."""
        return f"{self.config.data.name}: {self.num_samples:,} training samples, {self.num_classes:,} classes"

    def class_counts(self) -> Tensor:
        """How many training samples each class has, (K)."""
        raise PskdError(f"method.weight=balanced: {self.config.task} does not count the samples of its classes")

    def provide(self, method: Method) -> None:
        """Get ready to give the method what it needs."""
        if missing := sorted(method.needs - self.providers.keys()):
            raise PskdError(
                f"method={self.config.method.name} needs {missing[0]}, which {self.config.task} does not provide;"
                f" it provides {', '.join(self.providers)}"
            )

    def provided(self, method: Method, model: nn.Module, batch: Any) -> dict[str, Any]:
        """What the method needs of a batch, by name."""
        made = {need: self.providers[need] for need in self.providers if need in method.needs}
        return {need: make(model, batch) for need, make in made.items() if make is not None}

    @abstractmethod
    def model(self) -> nn.Module:
        """The model, freshly initialised."""

    def head(self, model: nn.Module) -> nn.Module:
        """The part of a model that is trained anew for its classes; the rest of it is the backbone."""
        raise PskdError(
            f"train.freeze and optim.backbone_lr: a model of {self.config.task} has no head apart from the rest"
        )

    def plan(self, epoch: int, group: Group, stretches: Sequence[Stretch] = ()) -> list[Step]:
        """This process's steps of an epoch, some ``stretches`` of which are behind it."""
        train = self.config.train
        return epoch_plan(
            self.num_samples, train.batch_size, train.accumulate, train.seed, epoch, **group.place, stretches=stretches
        )

    @abstractmethod
    def batches(self, plan: Sequence[Step], epoch: int, device: torch.device) -> Iterator[Any]:
        """One batch for every part of every step, in order."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any, real: int, method: Method) -> tuple[Loss, Shown | None]:
        """The mean loss over what counts in a batch, the plan's ``real``; 0 of it: padding, to be ignored.

        And what observers are shown, if the task has something for them.
        """

    @abstractmethod
    def evaluate(self, model: nn.Module, split: str, device: torch.device, group: Group) -> Evaluation:
        """Metrics on the split "val" or "test", exact over processes."""

    @abstractmethod
    def metadata(self) -> dict[str, Any]:
        """What is needed beside the weights to use them; saved inside model.safetensors, read by ``Predictor``."""
