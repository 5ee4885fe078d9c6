"""What is printed where there is no terminal."""

from __future__ import annotations

import contextlib
import threading
import time

import pytest

from pskd.engine import progress
from pskd.engine.progress import Progress, said_if_slow


def test_what_takes_long_is_spoken_of(capsys: pytest.CaptureFixture[str]) -> None:
    with said_if_slow("quick", seconds=30):
        pass
    with said_if_slow("reading much", seconds=0):
        deadline = time.monotonic() + 20
        said = ""
        while not said and time.monotonic() < deadline:
            time.sleep(0.01)
            said = capsys.readouterr().out
    assert said == "reading much\n"


def test_output_that_is_full_ends_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[object] = []
    monkeypatch.setattr("threading.excepthook", ended.append)
    before = threading.active_count()
    with open("/dev/full", "w") as full:
        monkeypatch.setattr("sys.stdout", full)
        with said_if_slow("reading much", seconds=0):
            while threading.active_count() > before:
                time.sleep(0.01)
        monkeypatch.undo()
        with contextlib.suppress(OSError):  # of closing what could not be written
            full.close()
    assert ended == []


def test_a_long_epoch_is_not_silent(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    logged: list[str] = []
    with Progress(100, 0, "img", shown=True, log=logged.append) as bar:
        bar.line("first")
        for _ in range(50):
            clock[0] += 3
            bar.step(6, lambda: "epoch 1/9")
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["first", "epoch 1/9 · 2 img/s · 0:03:57 left", "epoch 1/9 · 2 img/s · 0:02:54 left"]
    assert logged == ["first"]
