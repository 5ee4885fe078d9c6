"""The file `history.bin`: what the model predicted for every training sample in every epoch.

It begins with the number of samples N (7 bytes, little-endian) and the format's version (one byte). Each epoch adds a
block of 7 N bytes: float16 target probabilities, float16 maximum probabilities, float16 past, and a byte of flags for
each sample. Float16 is coarse near 1, so a target probability p above one half is stored as -(1 - p). The past is 1 - p
of the target class in the past prediction that the method used, NaN where it used none. Where a sample was mixed with
another one, its maximum probability is 0.

The first format, version 0, has no past: its blocks have 5 N bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pskd.errors import PskdError, error_context
from pskd.workbench.reading import check_file
from pskd.workbench.runs.files import write_atomic

HEADER, VERSION = 8, 2
HALVES = {0: 2, VERSION: 3}  # float16 numbers of a sample and epoch, by version
CORRECT, RESCALED = 1, 2  # flags: classified right; the gradient's norm is that of the plain loss times a factor


class Epochs(NamedTuple):
    """Arrays (epochs, samples); NaN, and false, where a sample was mixed."""

    target: np.ndarray
    wrong: np.ndarray  # 1 - target, without its rounding error
    maximum: np.ndarray
    correct: np.ndarray
    rescaled: np.ndarray  # alpha <= min over the other classes of p_t / p_(t-1)
    past_wrong: np.ndarray  # 1 - the past probability of the target class that the method used; NaN without one


class Recorded:
    """A run's history.bin with so many ``epochs``, if that is known. Only what is asked for is read."""

    def __init__(self, path: Path, epochs: int | None = None) -> None:
        check_file(path)
        with error_context(f"{path} cannot be read; delete it, and the report does without"):
            raw = np.memmap(path, np.uint8, "r")
        self.num_samples, self.version = int.from_bytes(raw[: HEADER - 1].tobytes(), "little"), int(raw[HEADER - 1])
        if self.version not in HALVES:
            raise PskdError(f"{path} has the format {self.version}, which this release does not know: use a newer one")
        block = block_size(self.num_samples, self.version)
        self._flags = block - self.num_samples  # where the flags begin
        self.num_epochs = (len(raw) - HEADER) // block if block else 0
        missing = "a whole epoch" if not self.num_epochs else ""
        if epochs is not None and (self.num_epochs, self.num_epochs * block) != (epochs, len(raw) - HEADER):
            missing = missing or f"the run's {epochs} epochs"
        if missing:
            raise PskdError(f"{path} is damaged: it does not hold {missing}; delete it, and the report does without")
        self._blocks = raw[HEADER : HEADER + self.num_epochs * block].reshape(self.num_epochs, block)

    def times_correct(self) -> np.ndarray:
        """In how many epochs each sample was classified right, (samples)."""
        times = np.zeros(self.num_samples, np.int64)
        for block in self._blocks:  # one after the other: all of them may be more than the memory
            times += block[self._flags :] & CORRECT
        return times

    def of(self, epochs: Sequence[int] | slice = slice(None), samples: np.ndarray | slice = slice(None)) -> Epochs:
        """Some epochs of some samples."""
        blocks, count = [self._blocks[epoch] for epoch in np.arange(self.num_epochs)[epochs]], self.num_samples
        halves = [block[: self._flags].view(np.float16).reshape(-1, count)[:, samples] for block in blocks]
        kept, maximum, *more = np.stack(halves).astype(np.float32).swapaxes(0, 1)
        flags = np.stack([block[self._flags :][samples] for block in blocks])
        above, unseen = np.signbit(kept), maximum == 0
        past_wrong = np.where(unseen, np.nan, more[0] if more else np.nan)
        kept, maximum = np.where(unseen, np.nan, np.abs(kept)), np.where(unseen, np.nan, maximum)
        target, wrong = np.where(above, 1 - kept, kept), np.where(above, kept, 1 - kept)
        return Epochs(target, wrong, maximum, flags & CORRECT > 0, flags & RESCALED > 0, past_wrong)


def header(num_samples: int) -> bytes:
    """The beginning of a file for so many samples."""
    return num_samples.to_bytes(HEADER - 1, "little") + bytes([VERSION])


def block_size(num_samples: int, version: int = VERSION) -> int:
    """Bytes of an epoch."""
    return (2 * HALVES[version] + 1) * num_samples


def renew(path: Path) -> None:
    """Rewrite a file of the first format in the current one, with no past: a resumed run adds to it."""
    with path.open("rb") as file:
        if file.read(HEADER)[-1:] != b"\0":
            return
    raw = np.fromfile(path, np.uint8)
    count = int.from_bytes(raw[: HEADER - 1].tobytes(), "little")
    old = block_size(count, 0)
    if not old or old > len(raw):
        raise PskdError(f"{path} is damaged: it holds no whole epoch; delete it to go on without")
    blocks = raw[HEADER : HEADER + (len(raw) - HEADER) // old * old].reshape(-1, old)
    none = np.full((len(blocks), count), np.nan, np.float16).view(np.uint8)
    write_atomic(path, header(count) + np.hstack((blocks[:, :-count], none, blocks[:, -count:])).tobytes())


def read(path: Path, epochs: int | None = None) -> Recorded | None:
    """A run's history, None if it recorded none."""
    return Recorded(path, epochs) if path.exists() and path.stat().st_size > HEADER else None
