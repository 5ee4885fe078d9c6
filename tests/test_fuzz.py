"""A small part of `benchmarks/fuzz.py`, which is run by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
PROGRAM = """
import json
import fuzz
from fuzzing import settings

fuzz.PROCESSES = 0.0  # a start takes seconds
kinds = ("settings", "recipe files", "searches", "commands", "places", "run folders", "arrays", "image folders")
fuzz.KINDS = {name: fuzz.KINDS[name] for name in kinds}
settings.RECIPES = {"digits": settings.RECIPES["digits"]}
count, failures = fuzz.run_cases(range(40), seed=1, images_only=True)
print(json.dumps([len(count), failures]))
"""


def test_odd_commands_settings_data_and_folders_end_in_one_line(tmp_path: Path) -> None:
    """In its own process, so that its cases, which are forks, inherit no threads of other tests."""
    paths = os.pathsep.join([str(BENCHMARKS), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    kinds, failures = json.loads(done.stdout.splitlines()[-1])
    assert failures == []
    assert kinds >= 6
