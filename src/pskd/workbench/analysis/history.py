"""Records what the model predicts for every training sample, in the file that `runs.history` reads."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from pskd.errors import PskdError
from pskd.memory.mapped import map_file
from pskd.methods.base import Method
from pskd.targets import Past, Targets
from pskd.workbench import registry, space
from pskd.workbench.runs.files import open_own
from pskd.workbench.runs.group import Group, own_rank
from pskd.workbench.runs.history import HALVES, HEADER, RESCALED, VERSION, block_size, header, renew
from pskd.workbench.tasks.base import Shown, Task

LOG_HALF = -0.6931471805599453
HELD = 5_000_000  # samples whose epoch is held in memory; the epoch of more samples lies in a scratch file
PART = 2**24  # bytes that processes add up and write at a time


@registry.observers.register("history")
def record_history(folder: Path, task: Task, method: Method, device: torch.device) -> History | None:
    """The recorder of a run, if its settings ask for one and its task shows samples."""
    if not (task.config.train.history and task.shows_samples):
        return None
    path, count, scratch = folder / "history.bin", task.num_samples, None
    if count > HELD:
        _check_room(path, block_size(count), task.config.train.epochs)
        scratch = folder / f"history-{own_rank()}.scratch"
    history = History(path, count, device, scratch)
    if hasattr(method, "watch"):
        method.watch = history.compare
    return history


def _check_room(path: Path, block: int, epochs: int) -> None:
    """Refuse at the start what would fill the disk later: a block for each epoch, and one of scratch."""
    needed = block * (epochs + 1) - (path.stat().st_size if path.exists() else 0)
    if needed > (free := shutil.disk_usage(path.parent).free):
        raise PskdError(
            f"train.history: {path} needs {space.format_bytes(needed)} more on the disk,"
            f" and {space.format_bytes(free)} are free: make room, or leave it out with train.history=false"
        )


class History:
    """An observer that holds the current epoch's record on the training device and appends it to a file.

    A method that softens targets by past predictions passes them to ``compare`` before each ``batch``, so that the
    gradient's rescaling can be recorded.

    Args:
        scratch: a file that holds the current epoch instead of the device; it is gone when the run ends.
    """

    def __init__(self, path: Path, num_samples: int, device: torch.device, scratch: Path | None = None) -> None:
        self.path, self.num_samples, self._scratch = path, num_samples, scratch
        self._block = _zeros(block_size(num_samples), device, scratch)
        probabilities = self._block[:-num_samples].view(torch.float16)
        self.probabilities, self.flags = probabilities.view(HALVES[VERSION], -1), self._block[-num_samples:]
        self._compared: tuple[Tensor, Tensor] | None = None

    @torch.no_grad()
    def batch(self, shown: Shown) -> None:
        """Record a training batch, without mixed samples."""
        index, logits, labels, plain = shown
        if isinstance(labels, tuple):
            labels, _, share = labels
            plain = torch.as_tensor(share) == 1 if plain is None else plain
        logits = logits.float()
        top, guess = logits.max(1)
        normalizer = logits.logsumexp(1)
        target = logits.gather(1, labels[:, None])[:, 0] - normalizer
        target = torch.where(target > LOG_HALF, -torch.expm1(target).abs(), target.exp())
        flags, past = (guess == labels).byte(), torch.full_like(target, torch.nan)
        if self._compared is not None:
            rescaled, past = self._compared
            flags += RESCALED * rescaled.byte()
            self._compared = None
        probabilities = torch.stack((target, (top - normalizer).exp(), past)).half()
        if self._scratch is not None:
            index, probabilities, flags = index.cpu(), probabilities.cpu(), flags.cpu()
            plain = None if plain is None else plain.cpu()
        if plain is not None:
            probabilities = torch.where(plain, probabilities, self.probabilities[:, index])
            flags = torch.where(plain, flags, self.flags[index])
        self.probabilities[:, index] = probabilities
        self.flags[index] = flags

    def end_epoch(self, group: Group) -> None:
        """Append the epoch to the file and start the next one."""
        with open_own(self.path, "ab") if group.leader else contextlib.nullcontext() as file:
            for _, part in self._sum_parts(group):
                if file is not None:
                    file.write(part.numpy().data)
        self._block.zero_()

    def state(self, group: Group) -> Tensor:
        """The epoch so far of all processes, 7 N bytes on the CPU, for the leader. The next step may change it."""
        if not group.active:
            return self._block.cpu()
        scratch = self._scratch.with_suffix(".sum") if self._scratch and group.leader else None
        total = _zeros(len(self._block) if group.leader else 0, torch.device("cpu"), scratch)
        for where, part in self._sum_parts(group):
            if group.leader:
                total[where] = part
        return total

    def _sum_parts(self, group: Group) -> Iterator[tuple[slice, Tensor]]:
        """The block part by part, on the CPU. Each sample is recorded by one process and has zeros on the others."""
        for start in range(0, len(self._block), PART):
            where = slice(start, start + PART)
            part = self._block[where].cpu()
            yield where, group.sum(part.clone()) if group.active else part

    def load(self, state: Tensor) -> None:
        """Restore an unfinished epoch on the leader: ``state`` is what all processes had recorded.

        A state of the first format has no past predictions.
        """
        if len(state) == len(self._block):
            self._block.copy_(state)
            return
        halves = state[: -self.num_samples].view(torch.float16).view(-1, self.num_samples)
        self.probabilities[-1, halves[1] != 0] = torch.nan
        self.probabilities[: len(halves)].copy_(halves)
        self.flags.copy_(state[-self.num_samples :])

    def cut(self, epochs: int) -> None:
        """Drop what was written after the first ``epochs``: a resumed run writes it again."""
        with open_own(self.path, "ab") as file:
            if not file.tell():
                file.write(header(self.num_samples))
        renew(self.path)
        with self.path.open("rb") as written:
            if (begin := written.read(HEADER)) != header(self.num_samples):
                raise PskdError(
                    f"{self.path} is damaged: its header does not say {self.num_samples} samples ({begin.hex()});"
                    " delete it to go on without"
                )
        with open_own(self.path, "ab") as file:
            file.truncate(HEADER + block_size(self.num_samples) * epochs)

    @torch.no_grad()
    def compare(self, logits: Tensor, labels: Targets, past: Past, alpha: float | Tensor) -> None:
        """Keep what ``batch`` will record of the past predictions that the method uses for it."""
        label = labels[0] if isinstance(labels, tuple) else labels
        values = past.probabilities(logits.shape[1])
        # Not 1 - p, which would be 0 near p = 1 for a past that was stored in half precision.
        wrong = values.scatter(1, label[:, None], 0.0).sum(1)
        wrong = wrong if past.known is None else wrong.masked_fill(~past.known, torch.nan)
        self._compared = is_rescaled(logits, label, past, alpha), wrong


def _zeros(size: int, device: torch.device, scratch: Path | None) -> Tensor:
    """``size`` zero bytes on the device, or in a file that nobody else can open any more."""
    if scratch is None:
        return torch.zeros(size, dtype=torch.uint8, device=device)
    scratch.unlink(missing_ok=True)  # left by an earlier process
    block = map_file(scratch, (size,), torch.uint8, f"{size} bytes of an epoch")
    scratch.unlink()
    return block


def is_rescaled(logits: Tensor, labels: Tensor, past: Past, alpha: float | Tensor) -> Tensor:
    """True (B) where ``alpha <= p_(t,i) / p_(t-1,i)`` for every class i but the label: the theory's condition."""
    surplus = torch.softmax(logits.float(), 1) - alpha * past.probabilities(logits.shape[1])
    met = surplus.scatter_(1, labels[:, None], 0.0).amin(1) >= 0
    return met if past.known is None else met & past.known
