"""Runs that the tests of this room share."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from helpers import small

from pskd.workbench.train.loop import train


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ResNet-8 on digits with a validation split of 431; it is calibrated by its own training. Not to be changed."""
    out = tmp_path_factory.mktemp("use") / "trained"
    words = ("data.per_class=null", "data.val_fraction=0.3", "train.calibrate=true", "epochs=2", "eval.every=2")
    train(small(*words), out)
    return out


@pytest.fixture
def copied(trained: Path, tmp_path: Path) -> Path:
    """A copy of it, for a test to change."""
    return shutil.copytree(trained, tmp_path / "copied", ignore=shutil.ignore_patterns("checkpoints"))
