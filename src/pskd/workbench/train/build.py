"""From settings to objects: devices, model, optimizer, average, method."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from pskd.errors import PskdError, error_context, installed_by
from pskd.memory import Snapshot
from pskd.methods import Method
from pskd.workbench.config import Config, OptimConfig, flat, identity
from pskd.workbench.config.base import TrainConfig
from pskd.workbench.config.methods import TrainingInfo, make_method
from pskd.workbench.models.modest import build_within_memory
from pskd.workbench.runs import devices, sharding
from pskd.workbench.runs.group import Group, rejoin_process_group
from pskd.workbench.tasks.base import Task
from pskd.workbench.train.observer import make_observers
from pskd.workbench.train.state import TrainingState


@contextlib.contextmanager
def open_accelerator(config: Config, out: Path) -> Iterator[Accelerator]:
    """The devices and processes of this run; its trackers are told the settings."""
    settings = config.train
    for tracker in settings.trackers:
        if find_spec(tracker) is None:
            raise PskdError(f"train.trackers: {tracker} is not installed: {installed_by(tracker)}")
    rejoin_process_group()
    AcceleratorState._reset_state()  # or a second training in one process would keep the precision of the first
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


def build_state(
    config: Config, task: Task, folder: Path, accelerator: Accelerator, group: Group, *, resumed: bool
) -> TrainingState:
    """All parts of a training, before its first step or before a checkpoint is loaded into them."""
    settings, device = config.train, accelerator.device
    if settings.threads is not None:
        torch.set_num_threads(min(settings.threads, os.cpu_count() or 1))  # more would wait for each other
    torch.manual_seed(settings.seed)
    model, frozen = build_model(config, task, device, group, resumed=resumed)
    optimizer = build_optimizer(model, config.optim, lambda: task.head(model), fused=device.type == "cpu")
    if accelerator.scaler is not None:  # without one, accelerate's wrapper only searches the disk in every step
        optimizer = accelerator.prepare_optimizer(optimizer)
    compiled = torch.compile(model) if settings.compile else model
    # A spread model must not be copied into each process.
    wrapped = accelerator.prepare_model(compiled, evaluation_mode=sharding.is_spread(model))
    plan = task.plan(0, group)
    method = build_method(config, task, model, len(plan) * settings.accumulate, folder, group)
    task.check_method(method)
    torch.manual_seed(settings.seed + 1 + group.rank)  # each process drops out other units
    return TrainingState(
        model=model,
        wrapped=wrapped,
        frozen=frozen,
        optimizer=optimizer,
        method=method,
        average=build_average(model, settings),
        scaler=accelerator.scaler,
        observers=make_observers(folder, task, method, device),
        device=device,
        sources=task.sources,
        settings=identity(config),
        steps_per_epoch=len(plan),
        epoch_samples=sum(step.total for step in plan),
    )


def build_model(
    config: Config, task: Task, device: torch.device, group: Group, *, resumed: bool = False
) -> tuple[nn.Module, list[nn.Module]]:
    """The model on its device, and spread over the processes if that is set; and its frozen layers."""
    spread = config.train.shard and group.active
    with error_context(f"model={config.model.name} cannot be built with its options"):
        model = build_within_memory(task.resumed_model if resumed else task.model).to(device)
    frozen = freeze(model, task.head(model)) if config.train.freeze == "backbone" else []
    if config.train.channels_last and not spread:
        model = model.to(memory_format=torch.channels_last)
    if device.type == "cpu":
        avoid_narrow_channels_last(model)
    if spread:
        sharding.shard(model, device, group.world)
    return model, frozen


def avoid_narrow_channels_last(model: nn.Module) -> None:
    """Run strided 1 x 1 convolutions of few channels in torch's usual format, whatever the format of the images.

    In channels-last, oneDNN writes past the workspace of the weights' gradient (its issue 6035): the heap is damaged,
    or a training hangs. It happens below 8 channels with AVX2, below 16 with AVX-512.
    """
    for layer in model.modules():
        if not isinstance(layer, nn.Conv2d) or set(layer.kernel_size) != {1} or set(layer.stride) == {1}:
            continue
        if layer.in_channels // layer.groups < 16:
            # A 1 x 1 kernel is contiguous in both formats: only a copy has the strides that tell them apart.
            layer.weight.data = layer.weight.data.clone(memory_format=torch.contiguous_format)
            layer.register_forward_pre_hook(_to_contiguous)


def _to_contiguous(layer: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(tensor.contiguous() for tensor in inputs)


def freeze(model: nn.Module, head: nn.Module) -> list[nn.Module]:
    """Train only the head; returns the other layers, whose batch statistics must not change either."""
    model.requires_grad_(False)
    head.requires_grad_(True)
    trained = set(head.modules())
    return [layer for layer in model.modules() if layer not in trained and list(layer.parameters(recurse=False))]


def build_optimizer(
    model: nn.Module, settings: OptimConfig, head: Callable[[], nn.Module], *, fused: bool = False
) -> torch.optim.Optimizer:
    """The optimizer; a backbone with its own learning rate is its second group, after the head.

    AdamW passes over every weight about 15 times; ``fused`` makes it one pass.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [trained]
    if settings.backbone_lr is not None:
        of_head = set(head().parameters())
        groups = [[p for p in trained if p in of_head], [p for p in trained if p not in of_head]]
        if not groups[1]:
            raise PskdError("optim.backbone_lr: nothing but the head is trained, leave it out or set train.freeze=none")
    parameters = [{"params": group} for group in groups]
    lr, decay = settings.lr, settings.weight_decay
    if settings.name == "adamw":
        return torch.optim.AdamW(parameters, lr, betas=settings.betas, weight_decay=decay, fused=fused or None)
    nesterov = settings.nesterov and settings.momentum > 0
    return torch.optim.SGD(parameters, lr, momentum=settings.momentum, nesterov=nesterov, weight_decay=decay)


def build_average(model: nn.Module, settings: TrainConfig) -> AveragedModel | None:
    """The mean of the weights at the ends of the last epochs, or their moving mean over all steps, or None.

    The moving mean begins with small decays, so that a short training is not averaged with its beginning.
    """
    if settings.ema is None:
        return AveragedModel(model, use_buffers=True) if settings.average > 1 else None
    decay = settings.ema

    @torch.no_grad()
    def move(means: Any, values: Any, _: Tensor | int) -> None:
        if not means[0].is_floating_point():
            torch._foreach_copy_(means, values)
            return
        updates = int(average.n_averaged)  # on the CPU: nothing waits for a device
        torch._foreach_lerp_(means, values, 1 - min(decay, (1 + updates) / (10 + updates)))

    average = AveragedModel(model, multi_avg_fn=move, use_buffers=True)
    return average


def balanced_weights(counts: Tensor) -> Tensor:
    """Weights (K) inversely proportional to the number of samples of each class; their mean over all samples is 1."""
    return counts.sum() / (len(counts) * counts.clamp_min(1))


def build_method(config: Config, task: Task, model: nn.Module, calls: int, folder: Path, group: Group) -> Method:
    """The method, called ``calls`` times in an epoch. The processes of a host share its scratch file in ``folder``."""
    shared = folder / f"bank-{group.host}.scratch" if group.local_world > 1 else None

    def remove_scratch() -> None:
        if shared is not None and group.host_leader:
            shared.unlink(missing_ok=True)

    remove_scratch()  # that of a killed run has other records
    group.barrier()
    training = TrainingInfo(
        epochs=config.train.epochs,
        num_classes=task.num_classes,
        num_samples=task.num_rows,
        steps_per_epoch=calls,
        model=model,
        fingerprint=task.fingerprint,
        path=shared,
        host=group.host,
        hosts=group.hosts,
        seed=config.train.seed,
        class_weight=balanced_weights(task.class_counts()) if config.method.weight == "balanced" else None,
    )
    method = make_method(config.method.name, training, config.method.options)
    group.barrier()
    remove_scratch()  # every process has opened it by now: however the run ends, no file is left
    if group.hosts > 1 and not task.rows_by_host and "index" in method.needs:
        raise PskdError(
            f"method={config.method.name}: {config.task} keeps past predictions on one host only;"
            " take method.memory=snapshot"
        )
    whole = "a snapshot is a whole copy of the model, take method.memory=bank"
    reason = task.needs_whole_model or (whole if isinstance(method.memory, Snapshot) else None)
    if config.train.shard and reason is not None:
        raise PskdError(f"train.shard=true: {reason}")
    return method
