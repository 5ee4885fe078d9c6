"""What a run says about itself: a line per epoch, and where a result comes from."""

from __future__ import annotations

import platform
import statistics
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pskd.config import Config
from pskd.metrics.catalogue import METRICS, metrics_of
from pskd.tasks.base import Task


def epoch_line(record: dict[str, Any], epochs: int, speed: float, unit: str, left: str) -> str:
    """One epoch in one line."""
    parts = [f"epoch {record['epoch']}/{epochs}", f"loss {record['train_loss']:.4f}"]
    if "alpha_t" in record:
        parts.append(f"alpha {record['alpha_t']:.3f}")
    for split in ("val", "test"):
        if split in record:
            lines = {name: METRICS[name].line for name in metrics_of(record[split])}
            shown = [line.format(record[split][name]) for name, line in lines.items() if line is not None]
            parts.append(f"{split}: {', '.join(shown)}")
    return " · ".join([*parts, f"{speed:,.0f} {unit}/s", f"{left} left"])


def provenance(
    config: Config, task: Task, model: nn.Module, processes: int, epoch_seconds: list[float]
) -> dict[str, Any]:
    """Where a result comes from: settings, seed, versions, code, data, time."""
    return {
        "seed": config.train.seed,
        "ece_bins": config.eval.ece_bins,
        "num_classes": task.num_classes,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "seconds": {
            "training": sum(epoch_seconds),
            "per_epoch": statistics.median(epoch_seconds) if epoch_seconds else None,
        },
        "processes": processes,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or "cpu",
        "versions": {
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in ("pskd", "torch", "torchvision", "accelerate", "numpy")},
        },
        "git": _git_state(),
        "data_fingerprint": task.fingerprint,
        "settings": config.model_dump(mode="json"),
    }


def _git_state() -> str | None:
    """Commit of the code that ran, with "+changes" where it was edited since; None outside a checkout."""
    folder = Path(__file__).parent

    def ask(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()

    try:
        if not ask("ls-files", "--error-unmatch", Path(__file__).name):
            return None
        return ask("rev-parse", "HEAD") + ("+changes" if ask("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return None
