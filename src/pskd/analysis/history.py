"""The recorder of what the model makes of every training sample: it writes the file of `pskd.runs.history`."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from pskd import registry
from pskd.errors import PskdError
from pskd.methods.base import Method
from pskd.runs.files import open_own
from pskd.runs.group import Group
from pskd.runs.history import HALVES, HEADER, RESCALED, VERSION, block_size, header, renew
from pskd.targets import Past, Targets
from pskd.tasks.base import Shown, Task

LOG_HALF = -0.6931471805599453


UP_TO = 5_000_000  # samples; each process holds all of an epoch's record


@registry.observers.register("history")
def record_history(folder: Path, task: Task, method: Method, device: torch.device) -> History | None:
    """The recorder of a run, for tasks that show their samples."""
    if not task.shows_samples or task.num_samples > UP_TO:
        return None
    return History(folder / "history.bin", task.num_samples, device, method)


class History:
    """The current epoch's record, on the training device, and the file that it goes to; an observer of the training.

    A method that softens targets by past predictions shows those that it uses, from wherever it has them, so that the
    gradient's rescaling can be recorded.
    """

    def __init__(self, path: Path, num_samples: int, device: torch.device, method: Method | None = None) -> None:
        self.path, self.num_samples = path, num_samples
        self.probabilities = torch.zeros(HALVES[VERSION], num_samples, dtype=torch.float16, device=device)
        self.flags = torch.zeros(num_samples, dtype=torch.uint8, device=device)
        self._compared: tuple[Tensor, Tensor] | None = None
        if method is not None:
            method.watch = self._compare

    @torch.no_grad()
    def batch(self, shown: Shown) -> None:
        """Note a training batch; of mixed samples nothing is kept."""
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
        if plain is not None:
            probabilities = torch.where(plain, probabilities, self.probabilities[:, index])
            flags = torch.where(plain, flags, self.flags[index])
        self.probabilities[:, index] = probabilities
        self.flags[index] = flags

    def end_epoch(self, group: Group) -> None:
        """Append the epoch to the file and begin the next one."""
        block = self.state(group)
        if group.leader:
            with open_own(self.path, "ab") as file:
                file.write(block.numpy().tobytes())
        self.probabilities.zero_()
        self.flags.zero_()

    def state(self, group: Group) -> Tensor:
        """The epoch so far, of all processes: 7 N bytes, on the CPU."""
        parts = (self.probabilities.view(torch.uint8).flatten(), self.flags)
        return group.sum(torch.cat(parts).cpu())  # a sample is one process's; it has zeros on the others

    def load(self, state: Tensor) -> None:
        """Go on with an epoch. On the leader only: ``state`` is what all processes had recorded.

        Of the first format it has no pasts.
        """
        halves = state[: -self.num_samples].view(torch.float16).view(-1, self.num_samples)
        self.probabilities[-1, halves[1] != 0] = torch.nan
        self.probabilities[: len(halves)].copy_(halves)
        self.flags.copy_(state[-self.num_samples :])

    def cut(self, epochs: int) -> None:
        """Drop what was written past the first ``epochs``: a resumed run will write it again."""
        with open_own(self.path, "ab") as file:
            if not file.tell():
                file.write(header(self.num_samples))
        renew(self.path)
        with self.path.open("rb") as written:
            if (found := written.read(HEADER)) != header(self.num_samples):
                raise PskdError(
                    f"{self.path} is damaged: it is of other samples than these {self.num_samples} ({found.hex()});"
                    " delete it to go on without"
                )
        with open_own(self.path, "ab") as file:
            file.truncate(HEADER + block_size(self.num_samples) * epochs)

    @torch.no_grad()
    def _compare(self, logits: Tensor, labels: Targets, past: Past, alpha: float | Tensor) -> None:
        label = labels[0] if isinstance(labels, tuple) else labels
        values = _dense(past, logits.shape[1])
        # Not 1 - p: of a past that was stored in half precision nothing would be left near p = 1.
        wrong = values.scatter(1, label[:, None], 0.0).sum(1)
        wrong = wrong if past.known is None else wrong.masked_fill(~past.known, torch.nan)
        self._compared = only_rescaled(logits, label, past, alpha), wrong


def only_rescaled(logits: Tensor, labels: Tensor, past: Past, alpha: float | Tensor) -> Tensor:
    """True (B) where ``alpha <= p_(t,i) / p_(t-1,i)`` for every class i but the label's (the theory's condition)."""
    alpha = alpha[:, None] if isinstance(alpha, Tensor) else alpha
    surplus = torch.softmax(logits.float(), 1) - alpha * _dense(past, logits.shape[1])
    met = surplus.scatter_(1, labels[:, None], 0.0).amin(1) >= 0
    return met if past.known is None else met & past.known


def _dense(past: Past, num_classes: int) -> Tensor:
    """Past predictions with a value for every class, (B, K) float32."""
    values = past.values.float()
    if past.classes is None:
        return values
    rest = (1 - values.sum(1, keepdim=True)).clamp_min(0) / max(1, num_classes - values.shape[1])
    return rest.expand(len(values), num_classes).scatter(1, past.classes, values)
