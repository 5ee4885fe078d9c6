"""Checkpoints of a training: what each process writes, how it is put back, and when it is time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn
from torch.optim.swa_utils import AveragedModel

from pskd.errors import RECOVERABLE, PskdError, single_line
from pskd.memory.base import shards_of
from pskd.methods import Method
from pskd.plan import Stretch
from pskd.workbench.config import Config, identity
from pskd.workbench.runs import checkpoint, schemas, sharding
from pskd.workbench.runs.checkpoint import Checkpoints
from pskd.workbench.runs.files import checksum
from pskd.workbench.runs.folder import RunFolder
from pskd.workbench.runs.group import Group
from pskd.workbench.train.observer import Observer
from pskd.workbench.train.state import TrainingState

CHECKPOINT_SHARE = 0.01  # of the training time, at most, with save_every=auto


class Saver:
    """Writes and reads the checkpoints of one run.

    Args:
        sources: identity of all that the training reads; a checkpoint of other sources is refused.
        weights: the model, without its wrappers.
        average: the mean of the last epochs' weights, if there is one.
        observers: by name; the state of each is a part of the checkpoint.
    """

    def __init__(
        self,
        config: Config,
        run: RunFolder,
        group: Group,
        accelerator: Accelerator,
        *,
        sources: str,
        state: TrainingState,
        weights: nn.Module,
        optimizer: torch.optim.Optimizer,
        method: Method,
        average: AveragedModel | None,
        observers: Mapping[str, Observer],
        steps_per_epoch: int,
    ) -> None:
        self.settings, self.run, self.group, self.accelerator = config.train, run, group, accelerator
        self.settings_id, self._interval = identity(config), config.train.save_interval
        self.sources, self.state, self.weights, self.optimizer = sources, state, weights, optimizer
        self.method, self.average, self.observers = method, average, observers
        self.steps_per_epoch = steps_per_epoch
        self.checkpoints = Checkpoints(run.checkpoints, self.settings.keep_last, group)
        self._saved_at, self._took = time.monotonic(), 0.0

    def save(self) -> None:
        """Write a checkpoint of this very moment."""
        self.run.check_held()
        begun, group, state = time.monotonic(), self.group, self.state
        own: dict[str, Any] = {**state.sums(), "rng": torch.get_rng_state()}
        device = self.accelerator.device
        if device.type == "cuda":
            own["cuda_rng"] = torch.cuda.get_rng_state(device)
        parts: dict[str, Any] = {f"process-{group.rank}": own}
        if group.host_leader and group.host < shards_of(self.method.memory):
            parts[f"method-{group.host}"] = self.method.state_dict()
        shared = {
            "model": sharding.whole(self.weights.state_dict()),
            "optimizer": sharding.whole(self.optimizer.state_dict()),
            **{name: observer.state(group) for name, observer in self.observers.items()},
        }
        if group.leader:
            parts |= shared
            here = state.state_dict()
            here["stretches"].append([state.step, group.hosts])
            about = {"sources": self.sources, "settings": self.settings_id, "world": group.world}
            parts["progress"] = {**here, **about}
            if self.average is not None:
                parts["average"] = self.average.state_dict()
            if self.accelerator.scaler is not None:
                parts["scaler"] = self.accelerator.scaler.state_dict()
        best = {self.run.best_model_file: state.best_sum} if group.leader and state.best_sum else {}
        self.checkpoints.save(state.epoch * self.steps_per_epoch + state.step, parts, best)
        self._saved_at = time.monotonic()
        self._took = self._saved_at - begun

    def load_newest(self, report: Callable[[str], None]) -> bool:
        """Continue from the newest whole checkpoint; says whether there was one."""
        if self.group.leader:
            self.checkpoints.clean()
        newest = self.checkpoints.newest(report)
        if newest is None:
            return False
        self.load(newest)
        report(f"resuming at epoch {self.state.epoch + 1}, step {self.state.step}")
        return True

    def load(self, folder: Path) -> None:
        """Continue as if the processes that wrote this checkpoint had never stopped; there may be more or fewer now."""
        try:
            self._load(folder)
        except (PskdError, *RECOVERABLE) as error:
            why = single_line(error) or type(error).__name__
            raise PskdError(f"checkpoint {folder} does not fit this run: {why}") from error
        self.group.barrier()

    def _load(self, folder: Path) -> None:
        group, state, here = self.group, self.state, checkpoint.load(folder, "progress")
        schemas.checked(schemas.Progress, here, "progress.pt", "bring it back")
        if here["epoch"] * self.steps_per_epoch + here["step"] != int(folder.name):
            raise PskdError("it is of another step, or of a run with other steps")
        if here["sources"] != self.sources:
            raise PskdError(
                f"{self.run.path} cannot go on: its training data is another or a reordered one now, or its teacher is"
                " another; bring back what it began with"
            )
        if here.get("settings", self.settings_id) != self.settings_id:
            raise PskdError(
                f"{self.run.path} cannot go on: its config.yaml has other settings now than those it was trained with;"
                " bring back the file as it was"
            )
        state.load_state_dict(here)
        kept = folder / self.run.best_model_file.name
        if group.leader and state.best_sum is not None and not self.has_best(like=kept):
            beside = self.run.best_model_file.with_name(f".{self.run.best_model_file.name}.writing")
            checkpoint.copied(kept, beside, state.best_sum)
            beside.replace(self.run.best_model_file)
        # The last stretch goes on where the number of hosts is the same; at the beginning of an epoch there is none.
        last: Stretch | None = state.stretches[-1] if state.stretches else None
        if not state.step:
            state.stretches = ()
        elif last is not None and last.hosts == group.hosts:
            state.stretches = state.stretches[:-1]
        sharding.load_model(self.weights, checkpoint.load(folder, "model"))
        stored = checkpoint.load(folder, "optimizer")
        _check_optimizer(self.optimizer.state_dict(), stored)
        sharding.load_optimizer(self.optimizer, stored)
        if self.accelerator.scaler is not None:
            self.accelerator.scaler.load_state_dict(checkpoint.load(folder, "scaler"))
        for shard in checkpoint.shards(folder, "method"):
            self.method.load_state_dict(shard)
        if group.leader:
            for name, observer in self.observers.items():
                observer.load(checkpoint.load(folder, name, mapped=True))
        if self.average is not None:
            self.average.load_state_dict(checkpoint.load(folder, "average"))
        if here["world"] == group.world:
            own = checkpoint.load(folder, f"process-{group.rank}")
            state.add_sums(own)
            torch.set_rng_state(own["rng"])
            if "cuda_rng" in own:
                torch.cuda.set_rng_state(own["cuda_rng"], self.accelerator.device)
        elif group.leader:
            for own in checkpoint.shards(folder, "process"):
                state.add_sums(own)

    def has_best(self, like: Path | None = None) -> bool:
        """Whether the best epoch's weights are there as they were written; ``like`` is a copy, which has to be as long.

        Without a copy to compare, a file that somebody has made endless would be summed up for ever.
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
            done = self.state.epoch * self.steps_per_epoch + self.state.step
            return done % max(1, round(number)) == 0
        return epoch_ends and self.state.epoch % max(1, round(number)) == 0


def _check_optimizer(own: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
    """Refuse settings of another kind, and sums that are none: they would be noticed in a step, if at all."""
    for ours, theirs in zip(own["param_groups"], stored["param_groups"], strict=True):
        for name, value in ours.items():
            if name in sharding.KERNELS:
                continue
            number = isinstance(value, float | int) and not isinstance(value, bool)
            if not isinstance(theirs[name], (float, int) if number else type(value)):
                raise ValueError(f"the optimizer's {name} is {theirs[name]!r}")
    for place, entry in stored["state"].items():
        if not isinstance(place, int) or not all(
            value is None or isinstance(value, torch.Tensor) for value in entry.values()
        ):
            raise ValueError("the optimizer's state holds something else than tensors")
