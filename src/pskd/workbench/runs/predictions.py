"""predictions.npz: what a finished run predicts for every test sample."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pskd.errors import PskdError, printable
from pskd.workbench.reading import read_npz
from pskd.workbench.runs.folder import RunFolder

_ADVICE = "it is damaged, or of another version"


class Predictions(NamedTuple):
    """Probabilities (N, K) and labels (N) of a split, its classes, and its fingerprint."""

    probs: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    fingerprint: str


def read(run: Path, split: str = "test") -> Predictions:
    """The stored predictions of a finished run on its split "test" or "val"."""
    stored, prefix = arrays(run), "val_" if split == "val" else ""
    if f"{prefix}probs" not in stored:
        raise PskdError(f"{run} has no class probabilities of its {split} split: it is no run of classification")
    path = RunFolder(run).predictions_file
    try:
        probs, labels, classes, fingerprint = (stored[f"{prefix}{name}"] for name in Predictions._fields)
    except KeyError as error:
        raise PskdError(f"{path} cannot be read (it has no {error}): {_ADVICE}") from None
    if problem := _problem(probs, labels, classes, fingerprint):
        raise PskdError(f"{path} cannot be read ({problem}): {_ADVICE}")
    names = tuple(printable(name) for name in classes.tolist())
    probs, labels = probs.astype(np.float32), labels.astype(np.int64)
    return Predictions(torch.from_numpy(probs), torch.from_numpy(labels), names, str(fingerprint))


def arrays(run: Path) -> dict[str, np.ndarray]:
    """All stored arrays by name, of any task."""
    path = RunFolder(run).predictions_file
    if not path.is_file():
        raise PskdError(f"{run} has no predictions.npz: it is not a finished run (pskd train --resume finishes one)")
    try:
        return read_npz(path)
    except PskdError as error:
        raise PskdError(f"{path} cannot be read ({error}): {_ADVICE}") from None


def fingerprint(run: Path, split: str) -> str | None:
    """The fingerprint of the split that the run was evaluated on, None if it is not known."""
    stored = arrays(run) if RunFolder(run).predictions_file.is_file() else {}
    value = stored.get("val_fingerprint" if split == "val" else "fingerprint")
    return None if value is None else str(value)


def _problem(probs: np.ndarray, labels: np.ndarray, classes: np.ndarray, fingerprint: np.ndarray) -> str | None:
    if probs.dtype.kind != "f" or probs.ndim != 2 or 0 in probs.shape:
        return f"probs is {probs.dtype} of shape {probs.shape}"
    if not (np.isfinite(probs).all() and probs.min() >= 0 and probs.max() <= 1.001):
        return "probs are no probabilities"
    count, num_classes = probs.shape
    if labels.dtype.kind not in "iu" or labels.shape != (count,) or labels.min() < 0 or labels.max() >= num_classes:
        return f"labels are not {count} numbers from 0 to {num_classes - 1}"
    if classes.dtype.kind != "U" or classes.shape != (num_classes,):
        return f"classes are not {num_classes} names"
    return None if fingerprint.dtype.kind == "U" and fingerprint.ndim == 0 else "fingerprint is no text"
