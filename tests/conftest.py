"""What every test shares: one torch thread (pytest-xdist fills the cores) and the real data, where there is any."""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder that holds the real data sets in their published layouts; skips where there is none."""
    root = os.environ.get("PSKD_DATA")
    if root is None or not Path(root).is_dir():
        pytest.skip("PSKD_DATA names no folder with the real data sets")
    return Path(root)
