"""A case: a command and its environment."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

TINY = ("data.per_class=4", "model.width=2", "batch_size=16", "epochs=1", "data.val_fraction=0.2")
TINY_TEXT = (
    *("data.pairs=40", "data.vocabulary=60", "model.layers=1", "model.width=8", "model.heads=2", "model.inner=8"),
    *("batch_size=256", "epochs=1", "eval.beam=1", "eval.every=9"),
)
TINY_SCENES = (
    *("data.train_images=2", "data.test_images=2", "data.val_images=2", "data.image_size=32", "data.max_size=48"),
    *("model.backbone=resnet8", "model.rois=8", "model.pyramid_width=8", "model.box_width=8", "epochs=1"),
    *("batch_size=2", "data.workers=0"),
)


@dataclass
class Case:
    """``words`` of one command that is run in its own folder.

    Args:
        process: whether it is a process of its own, as from a shell, or a fork of this one.
        locked: whether permissions apply to it, also where it is run by root.
        walled: whether nothing outside of its folder can be written: its own words name such a place.
        output: what standard output is.
        interrupts: how many Ctrl-C it gets, and after how many seconds the first.
    """

    words: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    process: bool = False
    locked: bool = False
    walled: bool = False
    output: Literal["file", "closed", "pipe", "full"] = "file"
    interrupts: tuple[int, float] | None = None


@dataclass(frozen=True)
class Templates:
    """Folders that cases get copies of: finished runs, one that was stopped, a study."""

    finished: Path
    other: Path  # as finished, of another seed
    stopped: Path
    text: Path
    scenes: Path
    study: Path


Generator = Callable[[random.Random, Path, Templates], Case]  # fills the case's folder
