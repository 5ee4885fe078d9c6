"""Studies of runs that take a fraction of a second, and workers for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from helpers import SMALL

from pskd.workbench.study.cells import Study, StudyFile
from pskd.workbench.study.queue import Queue
from pskd.workbench.study.worker import Worker

SETTINGS: dict[str, Any] = {
    key: json.loads(value) for key, value in (word.split("=") for word in (*SMALL, "eval.every=100"))
}


def small_study(folder: Path, axes: dict[str, Any] | int, *, prune: bool = False, **settings: Any) -> Study:
    """A study of these axes, or of two methods and so many seeds."""
    if isinstance(axes, int):
        axes = {"method": ["hard", "ps_kd"], "seed": list(range(axes))}
    file = StudyFile(about="", recipe="digits", settings={**SETTINGS, **settings}, axes=axes, prune=prune)
    study = Study("small", file, (), folder, folder.name)
    study.save()
    return study


def work(study: Study, url: str | None = None) -> None:
    Worker(Queue(study, url, heartbeat=1, grace=2, waits=True), say=lambda _: None).work()


def trainings(study: Study) -> list[int]:
    """How often each cell was trained to its end: a run appends the lines of its epochs, and each epoch has one."""
    counts = []
    for key, cell in study.cells().items():
        lines = (study.run_folder(key) / "log.txt").read_text().splitlines()
        counts.append(sum(line.startswith(f"epoch {cell.config.train.epochs}/") for line in lines))
    return counts
