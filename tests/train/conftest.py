"""A run to be damaged."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from chaos import tiny
from helpers import unfinished


@pytest.fixture(scope="session")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a best epoch; the last thing that it has is a checkpoint in the middle of its second epoch."""
    return unfinished(tmp_path_factory.mktemp("stopped") / "run", tiny("epochs=2", "data.val_fraction=0.2"))


@pytest.fixture
def run(stopped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped, tmp_path / "run"))
