"""What a run tells about itself: its heading, a line for each epoch, and where its result comes from."""

from __future__ import annotations

import platform
import statistics
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from torch import Tensor

from pskd.methods.base import Method
from pskd.metrics.catalogue import METRICS, metrics_of
from pskd.workbench.config import Config
from pskd.workbench.models.heads import without_heads
from pskd.workbench.runs.devices import name_of
from pskd.workbench.runs.group import Group
from pskd.workbench.tasks.base import Task
from pskd.workbench.train.state import TrainingState


def heading(config: Config, task: Task, state: TrainingState) -> str:
    """A run in one line: data, model, method, device."""
    parameters = sum(parameter.numel() for parameter in state.model.parameters())
    trained = sum(parameter.numel() for parameter in state.model.parameters() if parameter.requires_grad)
    words = [f"{config.model.name}, {_short(parameters)} parameters"]
    words += [f"{_short(trained)} of them trained"] if trained < parameters else []
    words += [task.first_weights] if task.first_weights else []
    return " · ".join([task.about(), ", ".join(words), _method_and_epochs(config), f"on {name_of(state.device)}"])


def reading_text(config: Config) -> str:
    """The run, while its data is read and its model is built."""
    return f"{config.data.name} · {config.model.name} · {_method_and_epochs(config)}: reading the data ..."


def _method_and_epochs(config: Config) -> str:
    return f"{config.method.name}, {config.train.epochs} epochs"


def _short(count: int) -> str:
    return f"{count / 1e6:.1f}M" if count >= 1e6 else f"{count:,}"


def epoch_line(record: dict[str, Any], epochs: int, method: Method, speed: str, time_left: str) -> str:
    """One epoch in one line."""
    parts = [f"epoch {record['epoch']}/{epochs}", f"loss {record['train_loss']:.4f}", *_method_texts(method)]
    for split in ("val", "test"):
        if split in record:
            lines = {name: METRICS[name].line for name in metrics_of(record[split])}
            shown = [line.format(record[split][name]) for name, line in lines.items() if line is not None]
            parts.append(f"{split}: {', '.join(shown)}")
    return " · ".join([*parts, speed, f"{time_left} left"])


def progress_text(state: TrainingState, epochs: int, loss: Tensor) -> str:
    """Where a training is, beside its bar."""
    loss_text = f"loss {float(loss.detach()):.3f}"
    return " · ".join([f"epoch {state.epoch + 1}/{epochs}", loss_text, *_method_texts(state.method)])


def method_values(method: Method) -> dict[str, float]:
    """The numbers of a method that an epoch's record shows."""
    return {name: getattr(method, name) for name in method.card.logs}


def _method_texts(method: Method) -> list[str]:
    return [f"{name.removesuffix('_t')} {value:.3f}" for name, value in method_values(method).items()]


def provenance(config: Config, task: Task, group: Group, state: TrainingState) -> dict[str, Any]:
    """Where a result comes from: settings, seed, versions, code, data, time."""
    return {
        "seed": config.train.seed,
        "ece_bins": config.eval.ece_bins,
        "num_classes": task.num_classes,
        "training_samples": task.num_samples,
        "parameters": sum(parameter.numel() for parameter in without_heads(state.model).parameters()),
        "seconds": {
            "training": sum(state.epoch_seconds),
            "per_epoch": statistics.median(state.epoch_seconds) if state.epoch_seconds else None,
        },
        "processes": group.world,
        "device": name_of(state.device),
        "versions": {
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in ("pskd", "torch", "torchvision", "accelerate", "numpy")},
        },
        "git": _git_state(),
        "data_fingerprint": task.fingerprint,
        "settings": config.model_dump(mode="json"),
    }


def _git_state() -> str | None:
    """The commit of the running code, with "+changes" if it was edited since; None outside of a git checkout."""
    folder = Path(__file__).parent

    def ask(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()

    try:
        if not ask("ls-files", "--error-unmatch", Path(__file__).name):
            return None
        return ask("rev-parse", "HEAD") + ("+changes" if ask("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return None
