"""What every test shares: one torch thread (pytest-xdist fills the cores) and the real data, where there is any."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from helpers import small

from pskd.workbench.train.loop import train

torch.set_num_threads(1)

PACKED = Path(__file__).parents[2] / "shared" / "data" / "unpack.py"  # packed data sets beside the checkout, if any


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder that holds the real data sets in their published layouts; skips where there is none.

    The environment variable PSKD_DATA names it; else packed data beside the checkout is unpacked once.
    """
    if root := os.environ.get("PSKD_DATA"):
        return Path(root)
    if not PACKED.is_file():
        pytest.skip("no real data: PSKD_DATA names no folder, and none lies beside the checkout")
    cache = Path(tempfile.gettempdir()) / f"pskd-test-data-{os.getuid()}"
    cache.mkdir(exist_ok=True)
    with (cache / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for name in ("cifar100", "multi30k", "iwslt", "voc2012"):
            if not (done := cache / f".unpacked-{name}").exists():
                subprocess.run([sys.executable, str(PACKED), str(cache), name], check=True, capture_output=True)
                done.touch()
    return cache


@pytest.fixture(autouse=True)
def hears_ctrl_c() -> Iterator[None]:
    """A command that has ended hears no Ctrl-C any more; the tests after it shall."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # what was held back comes now
    signal.signal(signal.SIGINT, before)


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
