"""What the training loop knows of a task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from pskd.errors import PskdError
from pskd.methods.base import Loss, Method
from pskd.plan import Step, Stretch, epoch_plan
from pskd.targets import Targets
from pskd.workbench.config import Config
from pskd.workbench.registry import Registry
from pskd.workbench.runs.group import Group
from pskd.workbench.tasks.predictor import Evaluation, Predictor

__all__ = ["Evaluation", "Shown", "Task"]

AnyPredictor: TypeAlias = Predictor  # a task has a class of its own of this name


class Shown(NamedTuple):
    """What an observer sees of a training batch: samples (B), logits (B, K) without gradient, who was distilled."""

    index: Tensor  # type: ignore[assignment]
    logits: Tensor
    targets: Targets
    distilled: Tensor | None


class Task(ABC):
    """A data set, and how a model learns from a batch of it. A subclass is registered by ``registry.tasks.register``.

    ``providers`` are functions of (model, batch), by the name of the need that they meet. They run before the student's
    forward pass.
    """

    Config: ClassVar[type[Config]]  # the settings of its runs
    Predictor: ClassVar[type[AnyPredictor]]  # opens its finished runs, and evaluates the model in training
    default_method: ClassVar[str | None] = None  # None: `config.DEFAULT_METHOD`
    data_sets: ClassVar[Registry | None] = None  # the names that data.name may have; their options are settings
    rows_by_host: ClassVar[bool] = True  # whether host i % hosts always trains on, and keeps, record i of a bank
    needs_whole_model: ClassVar[str | None] = None  # why its model cannot be spread over processes, if it cannot
    shows_samples: bool = False  # whether `loss` has something for observers: one row of logits per sample
    unit: ClassVar[str]  # what a sample is called in "1,200 img/s"
    selects_by: ClassVar[str]  # the metric of `metrics.catalogue` that chooses the best epoch on the validation split

    config: Any  # the task's own kind of Config
    num_classes: int
    num_samples: int  # of the training set
    num_rows: int  # records that a bank needs: one for each sample, or for each token
    fingerprint: str  # of the training data
    splits: Mapping[str, Any]  # what a model is evaluated on: "test", and "val" if there is one
    notes: Sequence[str] = ()  # what the log says of data and model; the screen shows the first line
    providers: Mapping[str, Callable[[nn.Module, Any], Any] | None]  # None: ``loss`` makes it itself
    first_weights: str = ""  # what the model started from, in words

    @classmethod
    def refuses(cls, method: type[Method]) -> str | None:
        """Why a method cannot teach this task; None: it can."""
        return None

    @property
    def has_validation(self) -> bool:
        return "val" in self.splits

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

    def check_method(self, method: Method) -> None:
        """Refuse a method that needs something which this task does not provide."""
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
        """A new model with its first weights."""

    def resumed_model(self) -> nn.Module:
        """A new model whose weights will come from a checkpoint."""
        return self.model()

    def head(self, model: nn.Module) -> nn.Module:
        """The part of a model that is trained anew for its classes. The rest is the backbone."""
        raise PskdError(
            f"train.freeze and optim.backbone_lr: a model of {self.config.task} has no head apart from the rest"
        )

    def plan(self, epoch: int, group: Group, stretches: Sequence[Stretch] = ()) -> list[Step]:
        """This process's steps of an epoch. The ``stretches`` are parts of it that are already done."""
        train = self.config.train
        return epoch_plan(
            self.num_samples, train.batch_size, train.accumulate, train.seed, epoch, **group.place, stretches=stretches
        )

    @abstractmethod
    def batches(
        self, plan: Sequence[Step], epoch: int, device: torch.device, needs: Collection[str] = ()
    ) -> Iterator[Any]:
        """One batch for every part of every step, in order, with the data that the method's ``needs`` ask for."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any, real: int, method: Method) -> tuple[Loss, Shown | None]:
        """The mean loss over the ``real`` samples of a batch, and what observers are shown, if there is something.

        With ``real`` = 0 the whole batch is padding, which must not be distilled.
        """

    def predictor(self, model: nn.Module, device: torch.device) -> AnyPredictor:
        """A model in training, as it will be used when the run has finished."""
        about = self.Predictor.about_class.model_validate(self.metadata())
        return self.Predictor(Path(), about, model, device)

    def evaluate(self, model: nn.Module, split: str, device: torch.device, group: Group) -> Evaluation:
        """Metrics on the split "val" or "test", exact over all processes."""
        return self.predictor(model, device).evaluate(self.splits[split], self.config, group)

    @abstractmethod
    def metadata(self) -> dict[str, Any]:
        """What is saved beside the weights, inside model.safetensors. ``Predictor`` reads it."""
