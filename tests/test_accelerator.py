"""The cases on a simulated accelerator, in a process of their own: torch would take it for the machine's own device."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def test_on_a_simulated_accelerator() -> None:
    cases = Path(__file__).with_name("accelerator_cases.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(cases)]
    done = subprocess.run(command, cwd=cases.parents[1], capture_output=True, text=True)
    if done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED:
        pytest.skip("this torch cannot make a device in Python")
    assert done.returncode == 0, done.stdout[-5000:]
