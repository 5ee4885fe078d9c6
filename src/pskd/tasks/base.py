"""What the engine knows of a task, and all it knows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from pskd.analysis.history import History
from pskd.methods.base import Loss, Method
from pskd.runs.group import Group
from pskd.runs.plan import Step, epoch_plan


class Evaluation(NamedTuple):
    """Metrics in the paper's units by name, and the predictions they were computed from (for predictions.npz).

    A metric is a number, or numbers by class.
    """

    metrics: dict[str, Any]
    predictions: dict[str, np.ndarray]
    signatures: dict[str, str] = {}  # noqa: RUF012  # how a metric was computed, where that has a name of its own


class Answer(ABC):
    """A model's answer to one input."""

    @abstractmethod
    def text(self) -> str:
        """For people."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """For machines."""


class Task(ABC):
    """A data set and what is done with a batch of it."""

    config: Any  # the task's own kind of Config
    unit: str  # what a sample is called in "1,200 img/s"
    num_classes: int
    num_samples: int  # rows that a bank needs
    fingerprint: str  # of the training data
    has_validation: bool
    rows_by_host = True  # whether row i of a bank is always trained on host i % hosts, which then keeps it
    records_history = False  # whether `loss` notes every sample in `history`
    history: History | None = None  # given by the engine
    selects_by: str  # the metric of `metrics.catalogue` that chooses the best epoch on the validation split
    notes: Sequence[str] = ()  # what the log shall say of data and model; the screen shows the first line

    @property
    def sources(self) -> str:
        """Identity of all that a training reads: its data, and its teacher if it has one."""
        return self.fingerprint

    @abstractmethod
    def model(self) -> nn.Module:
        """The model, freshly initialised."""

    def rebuilt(self, about: dict[str, Any]) -> nn.Module:
        """The model of a finished run from its ``metadata``, for its weights to be read into."""
        return self.model()

    def plan(self, epoch: int, group: Group) -> list[Step]:
        """This process's steps of an epoch."""
        train = self.config.train
        return epoch_plan(
            self.num_samples, train.batch_size, train.accumulate, train.seed, epoch, **group.place, begun=group.begun
        )

    @abstractmethod
    def batches(self, plan: Sequence[Step], epoch: int, device: torch.device) -> Iterator[Any]:
        """One batch for every part of every step, in order."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any, real: int, method: Method) -> Loss:
        """The mean loss over what counts in a batch, the plan's ``real``; 0 of it: padding, to be ignored."""

    @abstractmethod
    def evaluate(self, model: nn.Module, split: str, device: torch.device, group: Group) -> Evaluation:
        """Metrics on the split "val" or "test", exact over processes."""

    test_fingerprint: str | None = None  # of the test data, for tasks that have pictures

    def picture(self, index: int) -> np.ndarray | None:
        """The test sample ``index`` as an image, (H, W, C) uint8, for tasks that have images."""
        return None

    @abstractmethod
    def metadata(self) -> dict[str, Any]:
        """What is needed beside the weights to predict; saved inside model.safetensors."""
