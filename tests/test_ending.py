"""How a command ends: in one line and with an exit code, whatever ends it."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pskd.errors import PskdError
from pskd.workbench.cli import ending
from pskd.workbench.train.loop import Interrupted


@pytest.fixture(autouse=True)
def own_hook() -> Iterator[None]:
    hook = sys.unraisablehook
    yield
    sys.unraisablehook = hook


ENDS = {
    "an error": (PskdError("two\nlines"), 2, "pskd: two lines\n"),
    "the system": (OSError(errno.EISDIR, "Is a directory", "there"), 2, "pskd: there: this is a folder, not a file"),
    "a full disk": (OSError(errno.ENOSPC, "No space left"), 2, "pskd: the disk is full"),
    "memory": (MemoryError(), 2, "pskd: there is not enough memory"),
    "torch's memory": (RuntimeError("Allocator: can't allocate memory"), 2, "pskd: there is not enough memory"),
    "a card's memory": (RuntimeError("CUDA out of memory"), 2, "pskd: there is not enough memory"),
    "a run that can be resumed": (Interrupted(15, Path("run")), 143, "pskd: stopped; continue with: pskd train"),
    "depth": (RecursionError("maximum"), 2, "pskd: a file or setting is nested too deeply"),
    "a reader that left": (BrokenPipeError(), 2, ""),
    "Ctrl-C": (KeyboardInterrupt(), 130, "pskd: stopped\n"),
    "a bug": (KeyError("x"), 70, "pskd: unexpected KeyError: 'x'"),
}


@pytest.mark.parametrize(("error", "code", "line"), ENDS.values(), ids=ENDS)
def test_every_end_has_a_line_and_a_code(
    error: BaseException, code: int, line: str, capfd: pytest.CaptureFixture[str]
) -> None:
    def work() -> None:
        with ending.exit_on_error():
            raise error

    with pytest.raises(SystemExit) as stop:
        work()
    output = capfd.readouterr().err
    assert stop.value.code == code
    assert output.startswith(line)
    assert output.count("\n") == bool(line)


def test_ctrl_c_many_times_is_heard_once(capfd: pytest.CaptureFixture[str]) -> None:
    def many() -> None:
        for _ in range(20):
            os.kill(os.getpid(), signal.SIGINT)

    def work() -> None:
        with ending.exit_on_error():
            try:
                many()
            finally:
                many()  # while it is being handled

    with pytest.raises(SystemExit) as stop:
        work()
    assert (stop.value.code, capfd.readouterr().err) == (130, "pskd: stopped\n")


def pskd(*words: str, shell: str = "", **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pskd", *words]
    if shell:
        command = ["/bin/sh", "-c", f'"$@" {shell}', "sh", *command]
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, **options)  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize("shell", [">&-", ">/dev/full", "| true"])
def test_standard_output_that_is_closed_or_full(shell: str, tmp_path: Path) -> None:
    """The first file that is opened must not take the place of standard output either."""
    done = pskd("recipes", "ls", shell=shell, cwd=tmp_path)
    assert done.returncode in (0, 2)
    assert "Traceback" not in done.stderr
    assert done.stderr in ("", "pskd: the disk is full; free some space, then run it again\n")
    assert (done.returncode == 2) == (shell == ">/dev/full")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_that_does_not_know_a_letter(encoding: str) -> None:
    done = pskd("train", "n\u4e00", env={**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "1"})
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "\\u4e00" in done.stderr


BEGUN = "import signal, pskd.__main__ as m; signal.signal(signal.SIGINT, m._stop); print(flush=True); m.main()"


@pytest.mark.parametrize("after", [0.0, 0.2, 1.0])
def test_ctrl_c_while_modules_are_loaded(after: float, tmp_path: Path) -> None:
    command = [sys.executable, "-c", BEGUN, "train", "digits", "epochs=1000", "--out", "run"]
    started = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert started.stdout is not None
    started.stdout.readline()  # Python itself has started
    time.sleep(after)
    while started.poll() is None:  # again and again, in case Python loses one in a destructor
        started.send_signal(signal.SIGINT)
        time.sleep(0.005)
    output = started.communicate()[1]
    assert started.returncode == 130
    assert output.count("\n") == 1
    assert output.startswith("pskd: stopped")


@pytest.mark.parametrize("variables", [{"RANK": "1"}, {"RANK": "x"}, {"RANK": "0", "WORLD_SIZE": "2"}])
def test_variables_of_torchrun_without_torchrun(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    from pskd.workbench.runs.group import own_rank

    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    assert own_rank() == 0
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(PskdError, match="torchrun"):
        own_rank()


def test_a_rank_that_is_none_is_said_by_the_whole_command(tmp_path: Path) -> None:
    done = pskd("train", "digits", "--out", str(tmp_path / "run"), env={**os.environ, "RANK": "x"})
    assert done.returncode == 2
    assert done.stderr == "pskd: the variable RANK is 'x', not a number: start several processes by torchrun\n"
