"""predictions.npz: what a finished run made of every test sample."""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pskd.errors import PskdError
from pskd.runs.folder import RunFolder


class Predictions(NamedTuple):
    """What a run predicted for its test set: probabilities (N, K), labels (N), and what set and classes these are."""

    probs: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    fingerprint: str


def read(run: Path, split: str = "test") -> Predictions:
    """The stored predictions of a finished run on its split "test" or "val"."""
    of = "val_" if split == "val" else ""
    with _opened(run) as file:
        if f"{of}probs" not in file:
            raise PskdError(f"{run} has no class probabilities of its {split} split: it is no run of classification")
        probs, labels = torch.from_numpy(file[f"{of}probs"]), torch.from_numpy(file[f"{of}labels"])
        return Predictions(probs, labels, tuple(file[f"{of}classes"].tolist()), str(file[f"{of}fingerprint"]))


def arrays(run: Path) -> dict[str, np.ndarray]:
    """All that is stored, of whatever task, by name."""
    with _opened(run) as file:
        return {name: file[name] for name in file.files}


def fingerprint(run: Path, split: str) -> str | None:
    """Of the split that the run was evaluated on; None where that is not known."""
    key = "val_fingerprint" if split == "val" else "fingerprint"
    if not RunFolder(run).predictions_file.is_file():
        return None
    with _opened(run) as file:
        return str(file[key]) if key in file else None


@contextlib.contextmanager
def _opened(run: Path) -> Iterator[Any]:
    path = RunFolder(run).predictions_file
    if not path.is_file():
        raise PskdError(f"{run} has no predictions.npz: it is not a finished run (pskd train --resume finishes one)")
    try:
        with np.load(path, allow_pickle=False) as file:
            yield file
    except PskdError:
        raise
    except (OSError, KeyError, ValueError, TypeError, EOFError, MemoryError, zipfile.BadZipFile) as error:
        raise PskdError(
            f"{path} cannot be read ({str(error).splitlines()[0]}): it is damaged, or of another version"
        ) from None
