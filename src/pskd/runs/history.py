"""The file `history.bin`: what the model made of every training sample in every epoch.

It begins with the number of samples N, 8 bytes, little-endian. A block of 5 N bytes follows for each epoch:
float16 target probabilities, float16 maximum probabilities, and a byte of flags for each sample. Float16 is coarse
near 1, so a target probability p above one half is kept as -(1 - p). A sample that was mixed with another one in an
epoch has maximum probability 0 there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pskd.errors import PskdError

HEADER, PER_SAMPLE = 8, 5
CORRECT, RESCALED = 1, 2  # flags: classified right; the gradient's norm is that of the plain loss times a factor


class Epochs(NamedTuple):
    """Arrays (epochs, samples); NaN, and false, where a sample was mixed."""

    target: np.ndarray
    wrong: np.ndarray  # 1 - target, without its rounding error
    maximum: np.ndarray
    correct: np.ndarray
    rescaled: np.ndarray  # alpha <= min over the other classes of p_t / p_(t-1)


class Recorded:
    """A run's history.bin, of which only what is asked for is read."""

    def __init__(self, path: Path) -> None:
        raw = np.memmap(path, np.uint8, "r")
        self.num_samples = int.from_bytes(raw[:HEADER].tobytes(), "little")
        block = PER_SAMPLE * self.num_samples
        self.num_epochs = (len(raw) - HEADER) // block if block else 0
        if not self.num_epochs:
            raise PskdError(f"{path} is damaged: it holds no whole epoch; delete it, and the report does without")
        self._blocks = raw[HEADER : HEADER + self.num_epochs * block].reshape(self.num_epochs, block)

    def times_correct(self) -> np.ndarray:
        """In how many epochs each sample was classified right, (samples)."""
        return np.asarray((self._blocks[:, 4 * self.num_samples :] & CORRECT).sum(0, dtype=np.int64))

    def of(self, epochs: Sequence[int] | slice = slice(None), samples: np.ndarray | slice = slice(None)) -> Epochs:
        """Some epochs of some samples."""
        blocks, count = self._blocks[epochs], self.num_samples
        halves = blocks[:, : 4 * count].view(np.float16)
        kept = halves[:, :count][:, samples].astype(np.float32)
        maximum = halves[:, count:][:, samples].astype(np.float32)
        flags, above, unseen = blocks[:, 4 * count :][:, samples], np.signbit(kept), maximum == 0
        kept, maximum = np.where(unseen, np.nan, np.abs(kept)), np.where(unseen, np.nan, maximum)
        target, wrong = np.where(above, 1 - kept, kept), np.where(above, kept, 1 - kept)
        return Epochs(target, wrong, maximum, flags & CORRECT > 0, flags & RESCALED > 0)


def read(path: Path) -> Recorded | None:
    """What a run recorded; None if it did not."""
    return Recorded(path) if path.is_file() and path.stat().st_size > HEADER else None
