"""A run that was killed and resumed equals one that was not, to the bit."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import SMALL, equal_runs, in_child, small

from pskd.cli import main
from pskd.engine.checkpoint import Checkpoints, load
from pskd.engine.loop import train

LONGER = ("epochs=6",)
METHODS = {
    "bank": (),
    "top-k bank in a mapped file": ("method.form=topk", "method.k=4", "method.path={out}.rows"),
    "snapshot twice an epoch": ("method.memory=snapshot", "method.refresh=0.5"),
    "plain": ("method=hard",),
    "CS-KD, CutMix, several parts a step": ("method=cs_kd", "augment.mix=cutmix", "train.accumulate=2"),
}


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_killed_at_random_moments(method: tuple[str, ...], tmp_path: Path, undisturbed: Callable[..., Path]) -> None:
    out = tmp_path / "run"
    settings = [setting.format(out=out) for setting in method]
    config = small("train.save_every=2 steps", *LONGER, *settings)
    draw = random.Random(str(method))
    kills = 0
    while not (out / "result.json").exists():
        child = in_child(lambda: train(config, out, resume=True))
        if kills < 6:
            time.sleep(draw.uniform(0.02, 0.35))
            os.kill(child, signal.SIGKILL)
            kills += 1
        os.waitpid(child, 0)
    plain = tuple(setting for setting in method if "path" not in setting)
    assert kills >= 3  # a fast machine may finish before the sixth
    assert equal_runs(out, undisturbed(*LONGER, *plain))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_asked_to_stop(number: int, code: int, tmp_path: Path, undisturbed: Callable[..., Path]) -> None:
    """The next step writes a checkpoint in the middle of the epoch, and the command tells how to go on."""
    out, said = tmp_path / "run", tmp_path / "said"

    def work() -> None:
        with pytest.MonkeyPatch.context() as patch, said.open("w") as file, contextlib.redirect_stderr(file):
            patch.setattr("sys.argv", ["pskd", "train", "digits", *SMALL, "epochs=1000", "--out", str(out)])
            main()

    child = in_child(work)
    deadline = time.monotonic() + 120
    while not (out / "metrics.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(child, number)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == code
    assert "continue with: pskd train --resume --out" in said.read_text()
    newest = Checkpoints(out / "checkpoints", 2).newest(print)
    assert newest is not None
    assert load(newest, "progress")["step"] > 0


def test_a_full_disk_ends_in_one_line_and_can_be_resumed(tmp_path: Path, undisturbed: Callable[..., Path]) -> None:
    """A limit on the file size stands in for the disk."""
    out, said = tmp_path / "run", tmp_path / "said"
    words = ["pskd", "train", "digits", *SMALL, "train.save_every=5 steps", "--out", str(out)]

    def work() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        with pytest.MonkeyPatch.context() as patch, said.open("w") as file, contextlib.redirect_stderr(file):
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
            patch.setattr("sys.argv", words)
            main()

    child = in_child(work)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    assert said.read_text().startswith(f"pskd: writing {out}/checkpoints/")
    assert said.read_text().count("\n") == 1
    assert list((out / "checkpoints").iterdir()) == []
    train(None, out, resume=True)
    assert equal_runs(out, undisturbed())
