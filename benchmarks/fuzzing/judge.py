"""Runs a case and judges how it ended."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from processes import obey_permissions

from fuzzing.case import Case

SECONDS, BYTES = 20.0, 2 * 2**30  # what a case may take of a core's time and of memory
HANG = 90.0  # seconds without any computation, on a busy machine too


class Verdict(NamedTuple):
    """``wrong`` is empty if all is well; ``stderr`` is the text on standard error."""

    wrong: str
    stderr: str
    seconds: float


def judge_case(case: Case, here: Path) -> Verdict:
    """Run a case in the folder ``here``, whose neighbour ``outside`` must stay as it is."""
    outside, errors = here.parent / "outside", here.parent / "stderr"
    before = _content(outside)
    with errors.open("wb") as stderr:
        child = _process(case, here, stderr.fileno()) if case.process else _fork(case, here, stderr.fileno())
    code, flood, seconds = _attend(child, case)
    text = errors.read_text(errors="replace")
    wrong = flood or _wrong(case, code, text, seconds)
    if _content(outside) != before:
        wrong = wrong or "a file outside was changed"
    if any(path.name == "pwned" for path in (here / "pwned", outside / "pwned") if path.exists()):
        wrong = wrong or "code was run"
    return Verdict(wrong, text, seconds)


def _wrong(case: Case, code: int, text: str, seconds: float) -> str:
    lines = text.splitlines()
    allowed = {0, 2, 130, -signal.SIGINT} if case.interrupts else {0, 2}  # the last is 130 to a shell
    if "Traceback" in text:
        return f"traceback: {lines[-1][:120]}"
    if code not in allowed:
        return f"exit code {code}"
    most = 100 if case.words[:1] == ["predict"] else 1  # a line for each input that cannot be read
    if len(lines) > most or not all(line.startswith("pskd: ") for line in lines):
        return "more than one line on standard error, or one that does not begin with pskd:"
    if code == 2 and not lines and case.output == "file" and "--json" not in case.words:
        return "exit code 2 without a message"
    if "weights_only=False" in text:
        return "advice to unpickle"
    return "too slow" if seconds > SECONDS else ""


def _fork(case: Case, here: Path, stderr: int) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.chdir(here)
        os.dup2(stderr, 2)
        _standard_output(case)
        sys.stdout, sys.stderr = open(1, "w", errors="strict"), open(2, "w", errors="backslashreplace")  # noqa: SIM115
        os.environ.update(case.environment)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + BYTES, used + BYTES))
        if case.locked:
            obey_permissions()
        sys.argv, sys.executable = ["pskd", *case.words], "/bin/true"  # workers of a study leave at once
        sys.addaudithook(_watch(here, case.walled))
        from pskd.workbench.cli import main

        main()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        os._exit(code)


def _watch(here: Path, walled: bool) -> Callable[[str, tuple[Any, ...]], None]:
    """An audit hook that ends the process before it writes outside of its own folder.

    A walled process gets "permission denied" instead, and may make or remove nothing there either.
    """

    writing = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_TRUNC
    changes = {"os.rename": 1, "os.truncate": 0}  # which argument is the path
    changes |= {"os.mkdir": 0, "os.remove": 0, "os.rmdir": 0} if walled else {}
    below = (str(here), "/tmp/pymp-", "/tmp/torch")

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        is_written = event == "open" and (arguments[2] or 0) & writing
        if not is_written and event not in changes:
            return
        name = arguments[changes.get(event, 0)]
        if not isinstance(name, str | bytes | os.PathLike):
            return
        place = os.path.realpath(os.fsdecode(name))
        if place.startswith(below) or (is_written and (place.startswith(("/dev/", "/proc/")) or os.path.isdir(place))):
            return
        if walled:
            raise PermissionError(errno.EACCES, "Permission denied", place)
        os.write(2, f"Traceback: it writes to {place}\n".encode(errors="replace"))
        os._exit(99)

    return hook


def _process(case: Case, here: Path, stderr: int) -> int:
    command = [sys.executable, "-m", "pskd", *case.words]
    environment = {**os.environ, **case.environment}
    out: int = subprocess.DEVNULL
    reader = None
    if case.output == "full":
        out = os.open("/dev/full", os.O_WRONLY)
    elif case.output == "pipe":
        reader, out = os.pipe()
        os.close(reader)
    started = subprocess.Popen(
        ["/bin/sh", "-c", 'exec "$@" >&-', "sh", *command] if case.output == "closed" else command,
        cwd=here,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=stderr,
    )
    if out >= 0:
        os.close(out)
    started.returncode = 0  # it is waited for here, not by its destructor
    return started.pid


def _standard_output(case: Case) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    if case.output == "full":
        os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
    elif case.output == "pipe":
        reader, writer = os.pipe()
        os.close(reader)
        os.dup2(writer, 1)
    else:
        os.dup2(nothing, 1)


def _attend(child: int, case: Case) -> tuple[int, str, float]:
    """The exit code, the reason for ending the process, if there was one, and the seconds of a core."""
    begun, sent, flood, wait = time.monotonic(), 0, "", 0.002
    moved, used_then = begun, 0.0
    while True:
        ended, status, used = os.wait4(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), flood, used.ru_utime + used.ru_stime
        now = time.monotonic()
        if case.interrupts and sent < case.interrupts[0] and now - begun > case.interrupts[1] + 0.02 * sent:
            os.kill(child, signal.SIGINT)
            sent += 1
        with contextlib.suppress(OSError, IndexError):
            resident, cpu = _usage(child)
            flood = flood or (f"more than {BYTES / 2**30:.0f} GB" if resident > BYTES else "")
            flood = flood or ("too slow" if cpu > SECONDS else "")
            if cpu > used_then + 0.02:
                moved, used_then = now, cpu
        if now - moved > HANG:
            flood = flood or "a hang"
        if flood:
            os.kill(child, signal.SIGKILL)
        wait = min(0.05, wait * 1.5)
        time.sleep(0.01 if case.interrupts else wait)


def _usage(process: int) -> tuple[int, float]:
    """Bytes in memory, and seconds of a core's time so far."""
    resident = int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return resident, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _content(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.blake2b(path.read_bytes()).hexdigest() if path.is_file() else ""
        for path in sorted(folder.rglob("*"))
        if path.name != "mine" or path.is_file()
    }
