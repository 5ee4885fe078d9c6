"""A run folder belongs to one process and to one configuration."""

from __future__ import annotations

import errno
import os
import shutil
import time
from pathlib import Path

import pytest
from helpers import metrics_of, small
from processes import exit_code, in_child

from pskd.errors import PskdError
from pskd.memory.bank import PredictionBank
from pskd.workbench.runs.folder import InUse, RunFolder
from pskd.workbench.train.loop import train


@pytest.mark.parametrize("file_deleted", [False, True])
def test_in_use_by_another_process(file_deleted: bool, tmp_path: Path) -> None:
    def hold() -> None:
        run = RunFolder(tmp_path / "run")
        run.begin(run.claim(small(), resume=False))
        time.sleep(60)

    child = in_child(hold)
    while not (tmp_path / "run" / "config.yaml").exists():
        time.sleep(0.01)
    if file_deleted:
        (tmp_path / "run" / ".lock").unlink()
    with pytest.raises(PskdError, match="in use by another process"):
        RunFolder(tmp_path / "run").claim(small(), resume=True)
    os.kill(child, 9)
    os.waitpid(child, 0)
    RunFolder(tmp_path / "run").claim(small(), resume=True)  # the lock has ended with its process


def test_another_configuration(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.begin(run.claim(small(), resume=False))
    run.release()
    with pytest.raises(PskdError, match=r"belongs to another configuration \(optim.lr: 0.1, 0.2 here\)"):
        RunFolder(tmp_path).claim(small("optim.lr=0.2"), resume=True)
    with pytest.raises(PskdError, match="already holds a run: add --resume"):
        RunFolder(tmp_path).claim(small(), resume=False)
    assert RunFolder(tmp_path).claim(None, resume=True) == small()


def test_nothing_to_resume(tmp_path: Path) -> None:
    with pytest.raises(PskdError, match=r"no config.yaml to resume"):
        RunFolder(tmp_path / "nothing").claim(None, resume=True)


def test_a_killed_run_of_version_0_1_goes_on(tmp_path: Path) -> None:
    shutil.unpack_archive(Path(__file__).with_name("killed-0.1.tar.gz"), tmp_path, filter="data")
    assert train(None, tmp_path / "killed-0.1", resume=True)["epoch"] == 3
    losses = [record["train_loss"] for record in metrics_of(tmp_path / "killed-0.1")]
    assert losses == pytest.approx([2.413993, 2.318609, 2.302011], rel=1e-4)  # as version 0.1 went on itself


def test_a_torn_last_line_of_metrics_is_left_out(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    for epoch in (1, 2, 3):
        run.append_metrics({"epoch": epoch})
    with run.metrics_file.open("a") as file:
        file.write('{"epoch": 4, "tra')
    assert run.metrics() == [{"epoch": 1}, {"epoch": 2}, {"epoch": 3}]
    run.keep_metrics(2)
    assert run.metrics_file.read_text() == '{"epoch": 1}\n{"epoch": 2}\n'


def test_a_run_that_never_began_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(PskdError, match="resnet9"):
        train(small("model=resnet9"), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("kept")
    with pytest.raises(PskdError):
        train(small("model=resnet9"), tmp_path / "mine")
    assert [child.name for child in (tmp_path / "mine").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(("name", "error"), [("run", InUse), ("typo", PskdError)])
def test_a_refused_claim_leaves_nothing_behind(name: str, error: type[PskdError], tmp_path: Path) -> None:
    """Neither an open file nor a folder: a worker that waits for a run tries every second."""
    first = RunFolder(tmp_path / "run")
    first.begin(first.claim(small(), resume=False))

    def work() -> None:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            with pytest.raises(error):
                RunFolder(tmp_path / name).claim(None, resume=True)
        assert len(os.listdir("/proc/self/fd")) == before

    assert exit_code(in_child(work)) == 0
    first.release()
    assert not (tmp_path / "typo").exists()


def test_a_file_system_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.lockf", refuse)
    with pytest.raises(PskdError, match=r"run: its file system cannot lock files \(No locks available\)"):
        RunFolder(tmp_path / "run").claim(small(), resume=False)
    assert not (tmp_path / "run").exists()
    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(PskdError, match=r"rows cannot lock files \(No locks available\); name a file elsewhere"):
        PredictionBank(4, 3, path=tmp_path / "rows")


@pytest.mark.parametrize("taken", [False, True])
def test_a_lock_file_that_is_removed_where_folders_cannot_be_locked(
    taken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EBADF, "Bad file descriptor")  # as NFS does, for a folder

    monkeypatch.setattr("fcntl.flock", refuse)
    folder, second = tmp_path / "run", RunFolder(tmp_path / "run")

    def remove(record: dict[str, object]) -> None:
        if record["epoch"] == 2:
            (folder / ".lock").unlink()
            if taken:
                second.claim(None, resume=True)

    config = small("train.save_every=1 epoch", "epochs=4")
    with pytest.raises(InUse, match="another training may write there"):
        train(config, folder, after_epoch=remove)
    second.release()
    assert (folder / "checkpoints" / f"{2 * 7:09d}").exists()
    assert not (folder / "checkpoints" / f"{3 * 7:09d}").exists()
    train(None, folder, resume=True)
