"""A run that was killed and resumed is exactly the same as one that was not."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from banks import stored
from chaos import Storm, equal, tiny
from helpers import SMALL, metrics_of
from processes import exit_code, in_child, in_children, obey_permissions

from pskd.errors import PskdError
from pskd.workbench.cli import main
from pskd.workbench.runs.checkpoint import Checkpoints, load, shards
from pskd.workbench.train.loop import train

KINDS = {
    "bank": (1, 1, ()),
    "top-k means in a mapped file": (
        1,
        1,
        ("method.form=topk", "method.k=4", "method.path={out}.rows", "method.momentum=0.9"),
    ),
    "snapshot twice an epoch": (1, 1, ("method.memory=snapshot", "method.refresh=0.5")),
    "snapshot that follows": (1, 1, ("method.memory=snapshot", "method.ema=0.9")),
    "CS-KD, CutMix, several parts a step": (1, 1, ("method=cs_kd", "augment.mix=cutmix", "train.accumulate=2")),
    "two processes": (2, 1, ("method.form=topk", "method.k=4")),
    "two hosts": (1, 2, ("train.accumulate=2",)),
    "two processes, balanced, moving mean of weights, early end": (
        *(2, 1),
        (
            *("data.balance=true", "data.noise=0.2", "data.val_fraction=0.2", "train.ema=0.9", "train.patience=3"),
            *("augment.auto=trivial", "augment.erase=0.5", "augment.mix=mixup_cutmix", "method.weight=balanced"),
        ),
    ),
}


@pytest.mark.parametrize(("world", "hosts", "settings"), KINDS.values(), ids=KINDS)
def test_killed_at_random_moments(world: int, hosts: int, settings: tuple[str, ...], tmp_path: Path) -> None:
    """SIGKILL at any instant, also of one of two processes, while a checkpoint is written, or after it was damaged."""
    config = tiny("epochs=6", *(setting.format(out=tmp_path / "run") for setting in settings))
    plain = tiny("epochs=6", *(setting for setting in settings if "path" not in setting))
    train(tiny("epochs=1"), tmp_path / "warm-up")  # loads what the forked processes need
    undisturbed = in_children(lambda: train(plain, tmp_path / "undisturbed"), world, hosts)
    assert [exit_code(child) for child in undisturbed] == [0] * world * hosts
    out = tmp_path / "run"
    storm = Storm(lambda: in_children(lambda: train(config, out, resume=True), world, hosts), out, random.Random(0))
    assert storm.rage(5)["kills"] >= 2  # of 42 steps at most 10, and what a kill comes too late, pass between two
    assert equal(out, tmp_path / "undisturbed")


@pytest.mark.parametrize("after", [(1, 2), (1, 1), (3, 1)])
def test_more_or_fewer_processes_go_on(after: tuple[int, int], tmp_path: Path) -> None:
    """From two processes on one host, in the middle of an epoch: every sample of it still counts once."""
    out = tmp_path / "run"
    config = tiny("epochs=4")
    train(tiny("epochs=1"), tmp_path / "warm-up")

    def stop(record: dict[str, Any]) -> None:
        if record["epoch"] == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    children = in_children(lambda: train(config, out, after_epoch=stop), 2)
    assert {exit_code(child) for child in children} == {1}  # Interrupted
    assert Checkpoints(out / "checkpoints", 2).steps()[-1] % 7
    again = in_children(lambda: train(None, out, resume=True), *after)
    assert {exit_code(child) for child in again} == {0}
    assert [record["epoch"] for record in metrics_of(out)] == [1, 2, 3, 4]
    newest = Checkpoints(out / "checkpoints", 2).newest(pytest.fail)
    assert newest is not None
    known = [stored(shard["memory"]).epoch for shard in shards(newest, "method")]
    assert len(known) == after[1]
    assert sum(len(epochs) for epochs in known) == 200
    assert all((epochs > 0).all() for epochs in known)


def run_command(errors: Path, *words: str) -> None:
    with pytest.MonkeyPatch.context() as patch, errors.open("w") as file, contextlib.redirect_stderr(file):
        patch.setattr("sys.argv", ["pskd", "train", "digits", *SMALL, *words])
        main()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_asked_to_stop(number: int, code: int, tmp_path: Path, undisturbed: Callable[..., Path]) -> None:
    """The next step writes a checkpoint in the middle of the epoch, and the command tells how to continue."""
    out, errors = tmp_path / "run", tmp_path / "errors"
    child = in_child(lambda: run_command(errors, "epochs=1000", "--out", str(out)))
    deadline = time.monotonic() + 120
    while not (out / "metrics.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(child, number)
    assert exit_code(child) == code
    assert "continue with: pskd train --resume --out" in errors.read_text()
    newest = Checkpoints(out / "checkpoints", 2).newest(print)
    assert newest is not None
    assert load(newest, "progress")["step"] > 0


def test_a_full_disk_ends_in_one_line_and_can_be_resumed(tmp_path: Path, undisturbed: Callable[..., Path]) -> None:
    """A limit on the file size stands in for the disk."""
    out, errors = tmp_path / "run", tmp_path / "errors"

    def work() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        run_command(errors, "train.save_every=5 steps", "--out", str(out))

    assert exit_code(in_child(work)) == 2
    assert errors.read_text().startswith(f"pskd: writing {out}/checkpoints/")
    assert errors.read_text().count("\n") == 1
    assert list((out / "checkpoints").iterdir()) == []
    train(None, out, resume=True)
    assert equal(out, undisturbed())


def test_a_read_only_folder_ends_in_one_line(tmp_path: Path) -> None:
    config, output = tiny("epochs=1"), tmp_path / "output"
    closed = tmp_path / "closed"
    closed.mkdir(0o555)

    def work() -> None:
        obey_permissions()
        try:
            train(config, closed / "run")
        except PskdError as error:
            output.write_text(str(error))

    assert exit_code(in_child(work)) == 0
    assert output.read_text() == (
        f"run folder {closed}/run: permission denied; choose another --out, or change its permissions"
    )
