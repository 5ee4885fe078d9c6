"""All that changes while a model is trained, in one place: a checkpoint holds what stands here, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from pskd.errors import PskdError
from pskd.memory.base import shards_of
from pskd.methods import Method
from pskd.plan import Stretch
from pskd.workbench.runs import checkpoint, sharding
from pskd.workbench.runs.group import Group
from pskd.workbench.train.observer import Observer

_COUNTERS = ("epoch", "step", "skipped", "skips_in_a_row", "best", "best_sum", "epoch_seconds")


@dataclass
class TrainingState:
    """The parts of a training that change, and how far it is.

    ``step`` optimizer steps of ``epoch`` (both from 0) are done; sums and seconds are those of this epoch so far.
    """

    model: nn.Module  # without its wrappers
    wrapped: nn.Module
    frozen: Sequence[nn.Module]  # layers whose weights and batch statistics do not change
    optimizer: torch.optim.Optimizer
    method: Method
    average: AveragedModel | None  # of the model's weights
    scaler: Any  # of float16 losses, or None
    observers: Mapping[str, Observer]
    device: torch.device
    sources: str  # identity of all that the training reads; a checkpoint of other sources is refused
    settings: str  # identity of its settings, likewise
    steps_per_epoch: int
    epoch_samples: int  # or tokens, of all processes
    epoch: int = 0
    step: int = 0
    part_sums: dict[str, Tensor] = field(default_factory=dict)  # of the loss's parts by name
    skipped: int = 0  # samples of this epoch
    skips_in_a_row: int = 0  # steps
    best: dict[str, Any] | None = None  # the best epoch so far by the validation split
    best_sum: str | None = None  # the checksum of its weights; only the leader knows it
    epoch_seconds: list[float] = field(default_factory=list)
    stretches: tuple[Stretch, ...] = ()  # the parts of this epoch that were trained on other numbers of hosts

    def __post_init__(self) -> None:
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=self.device)
        self._began, self._seconds_before = time.monotonic(), 0.0  # before the run was resumed

    @property
    def steps_done(self) -> int:
        return self.epoch * self.steps_per_epoch + self.step

    @property
    def epochs_since_best(self) -> int:
        return 0 if self.best is None else self.epoch - int(self.best["epoch"])

    @property
    def seconds(self) -> float:
        """Spent in this epoch."""
        return self._seconds_before + time.monotonic() - self._began

    def start_epoch(self) -> None:
        self._began = time.monotonic()
        self.method.start_epoch(self.epoch)
        self.wrapped.train()
        for layer in self.frozen:
            layer.training = False

    def add(self, loss: Tensor, parts: Mapping[str, Tensor], samples: int) -> None:
        """Count a batch with this mean loss and these means of its parts."""
        self._add_sums(loss.detach() * samples, {name: part.detach() * samples for name, part in parts.items()})

    def _add_sums(self, loss: Tensor, parts: Mapping[str, Tensor]) -> None:
        self.loss_sum += loss.to(self.device)
        for name, value in parts.items():
            if name not in self.part_sums:
                self.part_sums[name] = torch.zeros_like(self.loss_sum)
            self.part_sums[name] += value.to(self.device)

    def mean_losses(self, group: Group) -> dict[str, Any]:
        """The epoch's mean loss over the samples of all processes, and its parts where there are several."""
        names = sorted(self.part_sums)
        sums = torch.stack([self.loss_sum, *(self.part_sums[name] for name in names)]).cpu()
        samples = max(1, self.epoch_samples - self.skipped)
        total, *parts = (value / samples for value in group.sum(sums).tolist())
        return {"train_loss": total, **({"loss_parts": dict(zip(names, parts, strict=True))} if len(names) > 1 else {})}

    def end_epoch(self) -> None:
        self.epoch_seconds.append(self.seconds)
        self.epoch, self.step, self.skipped = self.epoch + 1, 0, 0
        self._seconds_before, self.stretches = 0.0, ()
        self.loss_sum.zero_()
        self.part_sums = {}

    def checkpoint_parts(self, group: Group) -> dict[str, Any]:
        """What this process writes into a checkpoint, by file. All processes have to call it."""
        own: dict[str, Any] = {"loss_sum": self.loss_sum, "part_sums": self.part_sums, "rng": torch.get_rng_state()}
        if self.device.type == "cuda":
            own["cuda_rng"] = torch.cuda.get_rng_state(self.device)
        parts: dict[str, Any] = {f"process-{group.rank}": own}
        if group.host_leader and group.host < shards_of(self.method.memory):
            parts[f"method-{group.host}"] = self.method.state_dict()
        shared = {
            "model": sharding.whole(self.model.state_dict()),
            "optimizer": sharding.whole(self.optimizer.state_dict()),
            **{name: observer.state(group) for name, observer in self.observers.items()},
        }
        if group.leader:
            parts |= shared | {name: part.state_dict() for name, part in self._optional_parts().items()}
            parts["progress"] = {
                **{name: getattr(self, name) for name in _COUNTERS},
                "seconds": self.seconds if self.step else 0.0,
                "stretches": [*map(list, self.stretches), [self.step, group.hosts]],
                "sources": self.sources,
                "settings": self.settings,
                "world": group.world,
            }
        return parts

    def _optional_parts(self) -> dict[str, Any]:
        parts = {"average": self.average, "scaler": self.scaler}
        return {name: part for name, part in parts.items() if part is not None}

    def load(self, folder: Path, group: Group) -> None:
        """Continue from a checkpoint as if its processes had never stopped; there may be more or fewer of them now."""
        progress = checkpoint.load_progress(folder)
        self._check(progress, int(folder.name))
        for name in _COUNTERS:
            setattr(self, name, progress.get(name))  # an earlier release wrote no best_sum
        self._seconds_before = progress["seconds"]
        self.stretches = tuple(Stretch(*stretch) for stretch in progress["stretches"])
        # The last stretch continues with the same number of hosts; at the beginning of an epoch there is none.
        if not self.step:
            self.stretches = ()
        elif self.stretches and self.stretches[-1].hosts == group.hosts:
            self.stretches = self.stretches[:-1]
        sharding.load_model(self.model, checkpoint.load(folder, "model"))
        stored = checkpoint.load(folder, "optimizer")
        check_optimizer(self.optimizer.state_dict(), stored)
        sharding.load_optimizer(self.optimizer, stored)
        for name, part in self._optional_parts().items():
            part.load_state_dict(checkpoint.load(folder, name))
        for shard in checkpoint.shards(folder, "method"):
            self.method.load_state_dict(shard)
        if group.leader:
            for name, observer in self.observers.items():
                observer.load(checkpoint.load(folder, name, mapped=True))
        if progress["world"] == group.world:
            own = checkpoint.load(folder, f"process-{group.rank}")
            self._add_sums(own["loss_sum"], own.get("part_sums", {}))
            torch.set_rng_state(own["rng"])
            if "cuda_rng" in own:
                torch.cuda.set_rng_state(own["cuda_rng"], self.device)
        elif group.leader:
            for own in checkpoint.shards(folder, "process"):
                self._add_sums(own["loss_sum"], own.get("part_sums", {}))

    def _check(self, progress: Mapping[str, Any], steps: int) -> None:
        """Refuse a checkpoint of another training."""
        if progress["epoch"] * self.steps_per_epoch + progress["step"] != steps:
            raise PskdError("it was written at another step, or by a run with other steps in an epoch")
        if progress["sources"] != self.sources:
            raise PskdError("the training data or their order, or the teacher, have changed; restore them")
        if progress.get("settings", self.settings) != self.settings:
            raise PskdError("config.yaml has other settings than the run was trained with; restore the file")


def check_optimizer(own: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
    """Refuse settings of other types, and a state that is not made of tensors: a step would notice late or never."""
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
