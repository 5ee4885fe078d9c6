from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import small

from pskd.engine.loop import train


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The folder of a run that nobody disturbs, trained once per configuration."""
    runs: dict[tuple[str, ...], Path] = {}

    def run(*overrides: str) -> Path:
        if overrides not in runs:
            runs[overrides] = tmp_path_factory.mktemp("undisturbed") / "run"
            train(small(*overrides), runs[overrides])
        return runs[overrides]

    return run
