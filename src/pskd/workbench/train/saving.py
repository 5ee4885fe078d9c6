"""Checkpoints of a training: when one is written, and which one a resumed run continues from."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from pskd.errors import RECOVERABLE, PskdError, single_line
from pskd.workbench.config import Config
from pskd.workbench.runs import checkpoint
from pskd.workbench.runs.checkpoint import Checkpoints
from pskd.workbench.runs.files import checksum
from pskd.workbench.runs.folder import RunFolder
from pskd.workbench.runs.group import Group
from pskd.workbench.train.state import TrainingState

CHECKPOINT_SHARE = 0.01  # of the training time, at most, with save_every=auto


class Saver:
    """Writes and reads the checkpoints of one run."""

    def __init__(self, config: Config, run: RunFolder, group: Group, state: TrainingState) -> None:
        self.settings, self.run, self.group, self.state = config.train, run, group, state
        self.checkpoints = Checkpoints(run.checkpoints, config.train.keep_last, group)
        self._interval = config.train.save_interval
        self._saved_at, self._took = time.monotonic(), 0.0

    def save(self) -> None:
        """Write a checkpoint now."""
        self.run.check_held()
        begun, state = time.monotonic(), self.state
        best = {self.run.best_model_file: state.best_sum} if self.group.leader and state.best_sum else {}
        self.checkpoints.save(state.steps_done, state.checkpoint_parts(self.group), best)
        self._saved_at = time.monotonic()
        self._took = self._saved_at - begun

    def load_newest(self, report: Callable[[str], None]) -> bool:
        """Continue from the newest checkpoint that is not damaged; returns whether there is one."""
        if self.group.leader:
            self.checkpoints.clean()
        newest = self.checkpoints.newest(report)
        if newest is None:
            return False
        try:
            self.state.load(newest, self.group)
            self._restore_best(newest / self.run.best_model_file.name)
        except (PskdError, *RECOVERABLE) as error:
            why = single_line(error) or type(error).__name__
            raise PskdError(f"checkpoint {newest} does not fit this run: {why}") from error
        self.group.barrier()
        report(f"resuming at epoch {self.state.epoch + 1}, step {self.state.step}")
        return True

    def _restore_best(self, copy: Path) -> None:
        """Put the best epoch's weights back where they were lost or changed."""
        file, known = self.run.best_model_file, self.state.best_sum
        if self.group.leader and known is None and self.state.best is not None and file.is_file():
            # Version 0.1 kept no checksum. The weights are about as large as the model of the checkpoint.
            self.state.best_sum = checksum(file, most=2 * copy.with_name("model.pt").stat().st_size)
        if self.group.leader and known is not None and not self.has_best(like=copy):
            beside = file.with_name(f".{file.name}.writing")
            checkpoint.copy_file(copy, beside, known)
            beside.replace(file)

    def has_best(self, like: Path | None = None) -> bool:
        """Whether the best epoch's weights are there as they were written.

        Those of another size than their copy ``like`` are not read: a file that was made endless takes hours.
        """
        file = self.run.best_model_file
        if not file.is_file() or (like is not None and like.is_file() and like.stat().st_size != file.stat().st_size):
            return False
        return checksum(file) == self.state.best_sum

    def is_due(self, *, epoch_ends: bool = False) -> bool:
        """Whether it is time for a checkpoint."""
        number, unit = self._interval
        if unit == "minutes":
            wait = 60 * number
            if self.settings.save_every == "auto":
                wait = max(wait, self._took / CHECKPOINT_SHARE)
            return time.monotonic() - self._saved_at >= wait
        if unit == "steps":
            return self.state.steps_done % max(1, round(number)) == 0
        return epoch_ends and self.state.epoch % max(1, round(number)) == 0
