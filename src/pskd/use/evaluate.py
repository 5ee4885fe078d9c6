"""A finished run put to use: evaluate it again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pskd import tasks
from pskd.errors import PskdError
from pskd.runs import devices, weights
from pskd.runs.folder import RunFolder
from pskd.runs.group import Group


def evaluate(run_path: Path, split: str, data_root: str | None = None) -> dict[str, Any]:
    """Metrics of a finished run's model on its test or validation split."""
    run = RunFolder(run_path)
    config = run.config()
    if data_root is not None:
        config = config.model_copy(update={"data": config.data.model_copy(update={"root": data_root})})
    task = tasks.create(config)
    if split not in ("test", "val") or (split == "val" and not task.has_validation):
        raise PskdError(f"split {split!r} is not there; allowed are test{', val' if task.has_validation else ''}")
    model, _ = weights.restore(run_path, task.rebuilt, config.task)
    device = devices.usable_device(config.train.device)
    found = task.evaluate(model.to(device), split, device, Group())
    return {
        **found.metrics,
        "signatures": found.signatures,
        "ece_bins": config.eval.ece_bins,
        "num_classes": task.num_classes,
    }
