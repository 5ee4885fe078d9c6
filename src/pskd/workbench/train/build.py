"""From settings to objects: devices, optimizer, method."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from pskd.errors import PskdError, installed_by
from pskd.memory import Snapshot
from pskd.methods import Method
from pskd.workbench.config import Config, OptimConfig, flat
from pskd.workbench.config.base import TrainConfig
from pskd.workbench.config.methods import TrainingInfo, make_method
from pskd.workbench.runs import devices
from pskd.workbench.runs.group import Group, rejoin_process_group
from pskd.workbench.tasks.base import Task


@contextlib.contextmanager
def accelerator(config: Config, out: Path) -> Iterator[Accelerator]:
    """The devices and processes of this run; its trackers are told the settings."""
    settings = config.train
    for tracker in settings.trackers:
        if find_spec(tracker) is None:
            raise PskdError(f"train.trackers: {tracker} is not installed: {installed_by(tracker)}")
    rejoin_process_group()
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


def spare_narrow(model: nn.Module) -> None:
    """Let strided 1 x 1 convolutions of few channels run in torch's usual format, whatever that of the images.

    There oneDNN writes past the workspace of the weights' gradient (its issue 6035): the heap is damaged, or a training
    stands still for ever. Fewer than 8 channels with AVX2, 16 with AVX-512.
    """
    for layer in model.modules():
        if not isinstance(layer, nn.Conv2d) or set(layer.kernel_size) != {1} or set(layer.stride) == {1}:
            continue
        if layer.in_channels // layer.groups < 16:
            # A 1 x 1 kernel is contiguous in both formats: a copy alone has the strides that say which it is in.
            layer.weight.data = layer.weight.data.clone(memory_format=torch.contiguous_format)
            layer.register_forward_pre_hook(_contiguous)


def _contiguous(layer: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(tensor.contiguous() for tensor in given)


def freeze(model: nn.Module, head: nn.Module) -> list[nn.Module]:
    """Leave only the head to be trained; returns the layers of the rest, whose batch statistics are to stay, too."""
    model.requires_grad_(False)
    head.requires_grad_(True)
    trained = set(head.modules())
    return [layer for layer in model.modules() if layer not in trained and list(layer.parameters(recurse=False))]


def optimizer(
    model: nn.Module, settings: OptimConfig, head: Callable[[], nn.Module], *, fused: bool = False
) -> torch.optim.Optimizer:
    """With two groups where the backbone has a learning rate of its own: the head's, then the others'.

    AdamW makes about 15 passes over every weight on its own; ``fused`` makes it one over all.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    parameters: list[dict[str, Any]] = [{"params": trained}]
    if settings.backbone_lr is not None:
        own = set(head().parameters())
        others = [parameter for parameter in trained if parameter not in own]
        if not others:
            raise PskdError("optim.backbone_lr: nothing but the head is trained, leave it out or set train.freeze=none")
        parameters = [{"params": [parameter for parameter in trained if parameter in own]}, {"params": others}]
    if settings.name == "adamw":
        return torch.optim.AdamW(
            parameters, settings.lr, betas=settings.betas, weight_decay=settings.weight_decay, fused=fused or None
        )
    return torch.optim.SGD(
        parameters,
        settings.lr,
        momentum=settings.momentum,
        nesterov=settings.nesterov and settings.momentum > 0,
        weight_decay=settings.weight_decay,
    )


def average(model: nn.Module, settings: TrainConfig, steps_done: Callable[[], int]) -> AveragedModel | None:
    """The mean of the weights at the ends of the last epochs, or the moving one over all steps; None: neither.

    A moving one begins fast, so that a short training is not the mean of its beginning.
    """
    if settings.ema is None:
        return AveragedModel(model, use_buffers=True) if settings.average > 1 else None
    most = settings.ema

    @torch.no_grad()
    def move(means: Any, now: Any, _: Tensor | int) -> None:
        if not means[0].is_floating_point():
            torch._foreach_copy_(means, now)
            return
        done = steps_done()
        torch._foreach_lerp_(means, now, 1 - min(most, (1 + done) / (10 + done)))

    return AveragedModel(model, multi_avg_fn=move, use_buffers=True)


def balanced_weights(counts: Tensor) -> Tensor:
    """Weights (K) in inverse proportion to how many samples each class has; their mean over all samples is 1."""
    return counts.sum() / (len(counts) * counts.clamp_min(1))


def method(config: Config, task: Task, model: nn.Module, calls: int, folder: Path, group: Group) -> Method:
    """The method of this configuration, called so often in an epoch; the processes of a host share its scratch file."""
    shared = folder / f"bank-{group.host}.scratch" if group.local_world > 1 else None
    if shared is not None:
        if group.host_leader:
            shared.unlink(missing_ok=True)  # of an earlier process, whose rows are not ours
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
    made = make_method(config.method.name, training, config.method.options)
    if shared is not None:
        group.barrier()
        if group.host_leader:
            shared.unlink(missing_ok=True)  # all have it open: nothing is left behind, however this ends
    if group.hosts > 1 and not task.rows_by_host and "index" in made.needs:
        raise PskdError(
            f"method={config.method.name}: {config.task} keeps past predictions on one host only;"
            " take method.memory=snapshot"
        )
    whole = "a snapshot is a whole copy of the model, take method.memory=bank"
    reason = task.needs_whole_model or (whole if isinstance(made.memory, Snapshot) else None)
    if config.train.shard and reason is not None:
        raise PskdError(f"train.shard=true: {reason}")
    return made
