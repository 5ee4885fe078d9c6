"""What is printed where there is no terminal."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any, NoReturn

import pytest

from pskd.errors import PskdError
from pskd.workbench import api
from pskd.workbench.train import progress
from pskd.workbench.train.progress import Progress, print_if_slow


def first_line(capsys: pytest.CaptureFixture[str]) -> str:
    deadline = time.monotonic() + 20
    output = ""
    while not output and time.monotonic() < deadline:
        time.sleep(0.01)
        output = capsys.readouterr().out
    return output


def test_slow_work_is_announced(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progress, "SLOW", 30)
    with print_if_slow("quick"):
        pass
    monkeypatch.setattr(progress, "SLOW", 0)
    with print_if_slow("reading much"):
        assert first_line(capsys) == "reading much\n"


def test_the_loading_of_libraries_is_not_silent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wait(*_: Any, **__: Any) -> NoReturn:
        raise PskdError(first_line(capsys))

    monkeypatch.setattr(progress, "SLOW", 0)
    monkeypatch.setattr(api, "settings", wait)
    with pytest.raises(PskdError, match="loading libraries"):
        api.train("digits")


def test_output_that_is_full_ends_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SLOW", 0)
    ended: list[object] = []
    monkeypatch.setattr("threading.excepthook", ended.append)
    before = threading.active_count()
    with open("/dev/full", "w") as full:
        monkeypatch.setattr("sys.stdout", full)
        with print_if_slow("reading much"):
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
