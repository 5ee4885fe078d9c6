"""The comparison once everybody is calibrated: does a method still win after temperature scaling?"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pskd.calibration import fit_temperature
from pskd.errors import PskdError
from pskd.metrics import functional
from pskd.metrics.catalogue import METRICS
from pskd.workbench.report.summary import Table, lines_of
from pskd.workbench.runs import predictions
from pskd.workbench.study.results import Collection, Row, Run

NO_VALIDATION = (
    "No table after temperature scaling: not every run has a validation split to fit a temperature on"
    " (data.val_fraction=0.1)."
)
_LEAST = torch.finfo(torch.float32).tiny  # stored probabilities that were too small for a number stand as 0


class Scaled(NamedTuple):
    """A run's temperature by its validation predictions, and the metrics of its test predictions with it."""

    temperature: float
    metrics: Mapping[str, float]


def after_temperature(collection: Collection) -> Table | None:
    """A table as the comparison, of the test set after temperature scaling; None where a run has no validation split.

    Only the validation predictions are looked at to fit a temperature.
    """
    found = {id(row): [_scaled(run) for run in row.runs] for row in collection.rows}
    if any(each is None for of_row in found.values() for each in of_row):
        return None
    made = {key: [each for each in of_row if each is not None] for key, of_row in found.items()}
    metrics = [
        name for name in collection.columns if all(name in each.metrics for own in made.values() for each in own)
    ]
    frames = {
        frame: lines_of(
            rows,
            [{name: [each.metrics[name] for each in made[id(row)]] for name in metrics} for row in rows],
            {name: METRICS[name] for name in metrics},
            None,
        )
        for frame, rows in collection.frames.items()
    }
    notes = [
        "Each run's probabilities scaled by the temperature that its validation predictions ask for.",
        f"Temperatures (mean over seeds; above 1 the model was too sure): {_temperatures(collection.rows, made)}.",
    ]
    return Table("calibrated", "Test set, last epoch, after temperature scaling", metrics, frames, notes)


def _temperatures(rows: Sequence[Row], made: Mapping[int, list[Scaled]]) -> str:
    return ", ".join(f"{row.name} {statistics.fmean(each.temperature for each in made[id(row)]):.3f}" for row in rows)


def _scaled(run: Run) -> Scaled | None:
    if "val" not in run.result:
        return None
    try:
        validation, test = (predictions.read(run.folder.path, split) for split in ("val", "test"))
    except PskdError:
        return None
    temperature = fit_temperature(_log(validation.probs), validation.labels)
    scores = functional.score_samples(_log(test.probs) / temperature, test.labels, from_logits=True)
    return Scaled(temperature, functional.summarize(scores, run.config.eval.ece_bins))


def _log(probs: Tensor) -> Tensor:
    return probs.clamp_min(_LEAST).log()
