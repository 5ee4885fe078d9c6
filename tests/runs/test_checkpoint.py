"""A checkpoint is there whole or not at all, and a damaged one is passed over."""

from __future__ import annotations

import resource
import signal
from pathlib import Path

import pytest
import torch

from pskd.workbench.runs.checkpoint import Checkpoints, load


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    made = Checkpoints(tmp_path / "checkpoints", keep_last=2)
    for step in (10, 20, 30):
        made.save(step, {"model": {"w": torch.full((100,), float(step))}, "progress": {"step": step}})
    return made


def test_keeps_the_last_and_reads_them_back(checkpoints: Checkpoints) -> None:
    assert checkpoints.steps() == [20, 30]
    newest = checkpoints.newest(pytest.fail)
    assert newest is not None
    assert load(newest, "progress") == {"step": 30}
    assert torch.equal(load(newest, "model")["w"], torch.full((100,), 30.0))


@pytest.mark.parametrize("damage", ["flip", "truncate", "missing", "manifest"])
def test_damage_is_found_and_the_one_before_is_used(checkpoints: Checkpoints, damage: str) -> None:
    newest = checkpoints.newest(pytest.fail)
    assert newest is not None
    file = newest / ("manifest.json" if damage == "manifest" else "model.pt")
    content = bytearray(file.read_bytes())
    if damage == "missing":
        file.unlink()
    elif damage == "flip":
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    else:
        file.write_bytes(content[: len(content) // 2])
    reports: list[str] = []
    before = checkpoints.newest(reports.append)
    assert before is not None
    assert load(before, "progress") == {"step": 20}
    assert "damaged" in reports[0]
    assert str(newest) in reports[0]


def test_a_half_written_one_does_not_count(checkpoints: Checkpoints) -> None:
    half = checkpoints.folder / ".writing-000000040"
    half.mkdir()
    (half / "model.pt").write_bytes(b"half")
    assert checkpoints.steps() == [20, 30]
    checkpoints.clean()
    assert not half.exists()


def test_a_full_disk_leaves_the_old_ones(checkpoints: Checkpoints) -> None:
    """A limit on the file size stands in for the disk: both make the write fail in the middle."""
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            checkpoints.save(40, {"model": {"w": torch.zeros(100_000)}})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert checkpoints.steps() == [20, 30]
    assert [child.name for child in sorted(checkpoints.folder.iterdir())] == ["000000020", "000000030"]
