"""What the model made of every training sample in every epoch: what figures of hard examples are drawn from.

`history.bin` begins with the number of samples N, 8 bytes, little-endian. A block of 5 N bytes follows for each epoch:
float16 target probabilities, float16 maximum probabilities, and a byte of flags for each sample. Float16 is coarse
near 1, so a target probability p above one half is kept as -(1 - p). A sample that was mixed with another one in an
epoch has maximum probability 0 there.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pskd.errors import PskdError
from pskd.methods.base import Method
from pskd.methods.ps_kd import PSKD
from pskd.runs.group import Group
from pskd.targets import Past, Targets

HEADER, PER_SAMPLE = 8, 5
CORRECT, RESCALED = 1, 2  # flags: classified right; the gradient's norm is that of the plain loss times a factor
LOG_HALF = -0.6931471805599453


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
        chosen, count = self._blocks[epochs], self.num_samples
        halves = chosen[:, : 4 * count].view(np.float16)
        kept = halves[:, :count][:, samples].astype(np.float32)
        maximum = halves[:, count:][:, samples].astype(np.float32)
        flags, above, unseen = chosen[:, 4 * count :][:, samples], np.signbit(kept), maximum == 0
        kept, maximum = np.where(unseen, np.nan, np.abs(kept)), np.where(unseen, np.nan, maximum)
        target, wrong = np.where(above, 1 - kept, kept), np.where(above, kept, 1 - kept)
        return Epochs(target, wrong, maximum, flags & CORRECT > 0, flags & RESCALED > 0)


class History:
    """The current epoch's record, on the training device, and the file that it goes to.

    Without samples nothing is recorded.
    """

    def __init__(self, path: Path, num_samples: int, device: torch.device) -> None:
        self.path, self.num_samples = path, num_samples
        self.probabilities = torch.zeros(2, num_samples, dtype=torch.float16, device=device)
        self.flags = torch.zeros(num_samples, dtype=torch.uint8, device=device)
        self._rescaled: Tensor | None = None

    def attach(self, method: Method) -> None:
        """Let PS-KD show the past that it softens targets with."""
        if self.num_samples and isinstance(method, PSKD):
            method.watch = self._compare

    @torch.no_grad()
    def record(self, index: Tensor, logits: Tensor, labels: Targets, distilled: Tensor | None) -> None:
        """Note a training batch: samples (B), logits (B, K), and who of them is plain, if not all are."""
        if not self.num_samples:
            return
        plain = distilled
        if isinstance(labels, tuple):
            labels, _, share = labels
            plain = torch.as_tensor(share) == 1 if plain is None else plain
        logits = logits.float()
        top, guess = logits.max(1)
        normalizer = logits.logsumexp(1)
        target = logits.gather(1, labels[:, None])[:, 0] - normalizer
        target = torch.where(target > LOG_HALF, -torch.expm1(target).abs(), target.exp())
        probabilities = torch.stack((target, (top - normalizer).exp())).half()
        flags = (guess == labels).byte()
        if self._rescaled is not None:
            flags += RESCALED * self._rescaled.byte()
            self._rescaled = None
        if plain is not None:
            probabilities = torch.where(plain, probabilities, self.probabilities[:, index])
            flags = torch.where(plain, flags, self.flags[index])
        self.probabilities[:, index] = probabilities
        self.flags[index] = flags

    def end_epoch(self, group: Group) -> None:
        """Append the epoch to the file and begin the next one."""
        if not self.num_samples:
            return
        block = self.state(group)
        if group.leader:
            with self.path.open("ab") as file:
                file.write(block.numpy().tobytes())
        self.probabilities.zero_()
        self.flags.zero_()

    def state(self, group: Group) -> Tensor:
        """The epoch so far, of all processes: 5 N bytes, on the CPU."""
        parts = (self.probabilities.view(torch.uint8).flatten(), self.flags)
        return group.sum(torch.cat(parts).cpu())  # a sample is one process's; it has zeros on the others

    def load(self, state: Tensor) -> None:
        """Go on with an epoch. On the leader only: ``state`` is what all processes had recorded."""
        if self.num_samples:
            self.probabilities.copy_(state[: -self.num_samples].view(torch.float16).view(2, -1))
            self.flags.copy_(state[-self.num_samples :])

    def cut(self, epochs: int) -> None:
        """Drop what was written past the first ``epochs``: a resumed run will write it again."""
        if self.num_samples:
            if not self.path.exists():
                self.path.write_bytes(self.num_samples.to_bytes(HEADER, "little"))
            os.truncate(self.path, HEADER + PER_SAMPLE * self.num_samples * epochs)

    @torch.no_grad()
    def _compare(self, logits: Tensor, labels: Targets, past: Past, alpha: float) -> None:
        label = labels[0] if isinstance(labels, tuple) else labels
        self._rescaled = only_rescaled(logits, label, past, alpha)


def only_rescaled(logits: Tensor, labels: Tensor, past: Past, alpha: float) -> Tensor:
    """True (B) where ``alpha <= p_(t,i) / p_(t-1,i)`` for every class i but the label's (the theory's condition)."""
    values = past.values.float()
    if past.classes is not None:
        others = logits.shape[1] - values.shape[1]
        rest = (1 - values.sum(1, keepdim=True)).clamp_min(0) / max(1, others)
        values = rest.expand(logits.shape).scatter(1, past.classes, values)
    surplus = torch.softmax(logits.float(), 1) - alpha * values
    met = surplus.scatter_(1, labels[:, None], 0.0).amin(1) >= 0
    return met if past.known is None else met & past.known


def read(path: Path) -> Recorded | None:
    """What a run recorded; None if it did not."""
    return Recorded(path) if path.is_file() and path.stat().st_size > HEADER else None
