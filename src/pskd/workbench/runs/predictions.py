"""predictions.npz: what a finished run made of every test sample."""

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
    """What a run predicted for its test set: probabilities (N, K), labels (N), and what set and classes these are."""

    probs: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    fingerprint: str


def read(run: Path, split: str = "test") -> Predictions:
    """The stored predictions of a finished run on its split "test" or "val"."""
    found, of = arrays(run), "val_" if split == "val" else ""
    if f"{of}probs" not in found:
        raise PskdError(f"{run} has no class probabilities of its {split} split: it is no run of classification")
    path = RunFolder(run).predictions_file
    try:
        probs, labels, classes, own = (found[f"{of}{name}"] for name in Predictions._fields)
    except KeyError as error:
        raise PskdError(f"{path} cannot be read (it has no {error}): {_ADVICE}") from None
    if wrong := _wrong(probs, labels, classes, own):
        raise PskdError(f"{path} cannot be read ({wrong}): {_ADVICE}")
    names = tuple(printable(name) for name in classes.tolist())
    return Predictions(
        torch.from_numpy(probs.astype(np.float32)), torch.from_numpy(labels.astype(np.int64)), names, str(own)
    )


def arrays(run: Path) -> dict[str, np.ndarray]:
    """All that is stored, of whatever task, by name."""
    path = RunFolder(run).predictions_file
    if not path.is_file():
        raise PskdError(f"{run} has no predictions.npz: it is not a finished run (pskd train --resume finishes one)")
    try:
        return read_npz(path)
    except PskdError as error:
        raise PskdError(f"{path} cannot be read ({error}): {_ADVICE}") from None


def fingerprint(run: Path, split: str) -> str | None:
    """Of the split that the run was evaluated on; None where that is not known."""
    key = "val_fingerprint" if split == "val" else "fingerprint"
    if not RunFolder(run).predictions_file.is_file():
        return None
    found = arrays(run)
    return str(found[key]) if key in found else None


def _wrong(probs: np.ndarray, labels: np.ndarray, classes: np.ndarray, fingerprint: np.ndarray) -> str:
    """What is wrong with the arrays; nothing if all is well."""
    if probs.dtype.kind != "f" or probs.ndim != 2 or 0 in probs.shape:
        return f"probs is {probs.dtype} of shape {probs.shape}"
    if not (np.isfinite(probs).all() and probs.min() >= 0 and probs.max() <= 1.001):
        return "probs are no probabilities"
    count, num_classes = probs.shape
    if labels.dtype.kind not in "iu" or labels.shape != (count,) or labels.min() < 0 or labels.max() >= num_classes:
        return f"labels are not {count} numbers from 0 to {num_classes - 1}"
    if classes.dtype.kind != "U" or classes.shape != (num_classes,):
        return f"classes are not {num_classes} names"
    return "" if fingerprint.dtype.kind == "U" and fingerprint.ndim == 0 else "fingerprint is no text"
