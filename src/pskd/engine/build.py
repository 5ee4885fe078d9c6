"""From settings to objects: devices, optimizer, method."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import nn

from pskd.config import (
    Config,
    CSKDConfig,
    HardConfig,
    LabelSmoothingConfig,
    OptimConfig,
    PSKDConfig,
    TFKDConfig,
    flat,
)
from pskd.errors import PskdError
from pskd.memory.bank import PredictionBank
from pskd.memory.base import Memory
from pskd.memory.snapshot import Snapshot
from pskd.methods.base import Method
from pskd.methods.cs_kd import CSKD
from pskd.methods.hard import Hard
from pskd.methods.label_smoothing import LabelSmoothing
from pskd.methods.ps_kd import PSKD
from pskd.methods.tf_kd import TFKD
from pskd.runs import devices
from pskd.runs.group import Group, meet_again
from pskd.tasks.base import Task

DENSE_UP_TO = 1000  # classes; above, a bank keeps the top k


@contextlib.contextmanager
def accelerator(config: Config, out: Path) -> Iterator[Accelerator]:
    """The devices and processes of this run; its trackers are told the settings."""
    settings = config.train
    for tracker in settings.trackers:
        if find_spec(tracker) is None:
            raise PskdError(f"train.trackers: {tracker} is not installed: pip install 'pskd[{tracker}]'")
    meet_again()
    AcceleratorState._reset_state()  # or a second training in one process would keep the first one's precision
    accelerator = Accelerator(
        cpu=devices.uses_cpu(settings.device),
        mixed_precision="no" if settings.precision == "fp32" else settings.precision,
        log_with=list(settings.trackers) or None,
        project_dir=out,
    )
    if settings.trackers:
        accelerator.init_trackers(out.name, config={k: str(v) for k, v in flat(config.model_dump(), "/").items()})
    try:
        yield accelerator
    finally:
        accelerator.end_training()


def optimizer(model: nn.Module, settings: OptimConfig) -> torch.optim.Optimizer:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if settings.name == "adamw":
        return torch.optim.AdamW(parameters, settings.lr, betas=settings.betas, weight_decay=settings.weight_decay)
    return torch.optim.SGD(
        parameters,
        settings.lr,
        momentum=settings.momentum,
        nesterov=settings.nesterov and settings.momentum > 0,
        weight_decay=settings.weight_decay,
    )


def method(config: Config, task: Task, model: nn.Module, steps_per_epoch: int, folder: Path, group: Group) -> Method:
    """The method of this configuration; its bank, if it has one, is shared by the processes of this host."""
    settings = config.method
    if isinstance(settings, HardConfig):
        return Hard()
    if isinstance(settings, LabelSmoothingConfig):
        return LabelSmoothing(settings.epsilon, settings.others_only)
    if isinstance(settings, CSKDConfig):
        return CSKD(settings.temperature, settings.weight)
    if isinstance(settings, TFKDConfig):
        if settings.variant == "reg" and settings.a * task.num_classes <= 1:
            raise PskdError(f"method.a={settings.a} must be more than 1/{task.num_classes}, one over the classes")
        own = settings.model_dump(exclude={"name", "teacher"})
        return TFKD(**own)
    assert isinstance(settings, PSKDConfig)
    memory: Memory
    if settings.memory == "snapshot":
        memory = Snapshot(model, settings.refresh, steps_per_epoch)
    else:
        if group.hosts > 1 and not task.rows_by_host:
            raise PskdError(f"method.memory=bank: {config.task} has it on one host only; take method.memory=snapshot")
        form = settings.form
        if form == "auto":
            form = "dense" if task.num_classes <= DENSE_UP_TO else "topk"
        path = settings.path or (folder / f"bank-{group.host}.scratch" if group.local_world > 1 else None)
        if path is not None:
            if group.host_leader:
                Path(path).unlink(missing_ok=True)  # rows of an earlier process are not ours
            group.barrier()
        memory = PredictionBank(
            task.num_samples,
            task.num_classes,
            form=form,
            k=settings.k,
            dtype=getattr(torch, settings.dtype),
            path=path,
            fingerprint=task.fingerprint,
            host=group.host,
            hosts=group.hosts,
        )
        group.barrier()
        if path is not None and group.host_leader and group.local_world > 1:
            Path(path).unlink(missing_ok=True)  # all have it open: nothing is left behind, however this ends
    method = PSKD(config.train.epochs, settings.alpha, settings.schedule, memory=memory)
    method.strict = config.train.on_nonfinite == "stop"
    return method
