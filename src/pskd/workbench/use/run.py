"""A finished run's folder: its settings, its history and its results."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pskd.metrics.catalogue import METRICS, is_number, metrics_of
from pskd.workbench.config import Config, flat
from pskd.workbench.runs import predictions
from pskd.workbench.runs.folder import RunFolder
from pskd.workbench.tasks.predictor import Predictor


class Run:
    """The content of a finished run's folder. Each file is read when it is needed."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.folder = RunFolder(Path(path))
        self.result: dict[str, Any] = self.folder.result()

    @property
    def path(self) -> Path:
        return self.folder.path

    @cached_property
    def config(self) -> Config:
        """All settings. Code that they name is not imported."""
        return self.folder.config()

    @property
    def metrics(self) -> dict[str, float]:
        """The last epoch's metrics on the test set, in the units of the tables."""
        return {name: self.result[name] for name in metrics_of(self.result)}

    @cached_property
    def history(self) -> dict[str, np.ndarray]:
        """The records of all epochs: ``train_loss``, ``lr``, ``test/nll`` and so on, each (epochs,).

        NaN where an epoch has no such number.
        """
        records = [flat(record, "/") for record in self.folder.metrics()]
        names = dict.fromkeys(name for record in records for name, value in record.items() if is_number(value))
        return {name: np.array([record.get(name, np.nan) for record in records]) for name in names}

    @cached_property
    def predictions(self) -> dict[str, np.ndarray]:
        """The model's predictions for the test set, and for the validation split with ``val_`` before their names.

        A classifier has ``probs`` (N, K), ``labels`` (N,), ``classes`` (K,).
        """
        return predictions.arrays(self.path)

    def predictor(self, *, best: bool = False, device: str | None = None, allow_code: bool = False) -> Predictor:
        """The model, ready to use: see ``pskd.load``."""
        return Predictor.from_run(self.path, best=best, device=device, allow_code=allow_code)

    def __repr__(self) -> str:
        shown = (f"{METRICS[name].heading} {METRICS[name].text(value)}" for name, value in self.metrics.items())
        return f"Run({str(self.path)!r}: {', '.join(shown)})"
