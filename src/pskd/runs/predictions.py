"""predictions.npz: what a finished run made of every test sample."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import NamedTuple

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
