"""Ensembles of finished runs: the mean of their softmax outputs (the paper's Table 3)."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pskd.engine.run import RunFolder
from pskd.errors import PskdError
from pskd.metrics import functional


class Different(PskdError):
    """Runs that were tested on different data, or know different classes."""


class Predictions(NamedTuple):
    """What a run predicted for its test set: probabilities (N, K), labels (N), and what set and classes these are."""

    probs: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    fingerprint: str


def read(run: Path, split: str = "test") -> Predictions:
    """The stored predictions of a finished run on its split "test" or "val"."""
    path = RunFolder(run).predictions_file
    if not path.is_file():
        raise PskdError(f"{run} has no predictions.npz: it is not a finished run (pskd train --resume finishes one)")
    try:
        with np.load(path, allow_pickle=False) as file:
            of = "val_" if split == "val" else ""
            if f"{of}probs" not in file:
                raise PskdError(
                    f"{run} has no class probabilities of its {split} split: it is no run of classification"
                )
            probs, labels = torch.from_numpy(file[f"{of}probs"]), torch.from_numpy(file[f"{of}labels"])
            return Predictions(probs, labels, tuple(file[f"{of}classes"].tolist()), str(file[f"{of}fingerprint"]))
    except PskdError:
        raise
    except (OSError, KeyError, ValueError, TypeError, EOFError, MemoryError, zipfile.BadZipFile) as error:
        raise PskdError(
            f"{path} cannot be read ({str(error).splitlines()[0]}): it is damaged, or of another version"
        ) from None


def joined(runs: Sequence[Path]) -> Predictions:
    """The mean of the runs' probabilities, in float64."""
    if len(runs) < 2:
        raise PskdError("an ensemble needs at least two runs")
    first = read(runs[0])
    total = first.probs.double()
    for run in runs[1:]:
        member = read(run)
        if member.classes != first.classes:
            raise Different(f"{run} has other classes, or another order of them, than {runs[0]}")
        if member.fingerprint != first.fingerprint or not torch.equal(member.labels, first.labels):
            raise Different(f"{run} was tested on another test set than {runs[0]}")
        total += member.probs
    return first._replace(probs=total / len(runs))


def score(predictions: Predictions, n_bins: int = 10) -> dict[str, float]:
    """Metrics of stored predictions in the paper's units."""
    smallest = 2.0**-149  # what float32 holds at the least: a stored 0 is not certainty
    log_probs = predictions.probs.double().clamp_min(smallest).log()
    return functional.summarize(functional.score_samples(log_probs, predictions.labels), n_bins)


def ensemble(runs: Sequence[Path], n_bins: int = 10) -> dict[str, dict[str, Any]]:
    """Metrics in the paper's units of each run by its name, and of "ensemble", the mean of their probabilities."""
    mean = score(joined(runs), n_bins)
    return {**{str(run): score(read(run), n_bins) for run in runs}, "ensemble": mean}
