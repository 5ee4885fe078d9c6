"""How a command ends: in one line on standard error and with an exit code, whatever stops it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from typing import Any, NoReturn

from pskd.errors import PskdError, single_line
from pskd.workbench.runs.files import explain

WRONG, UNEXPECTED, INTERRUPTED = 2, 70, 130
_PATIENCE = 3.0  # seconds after a Ctrl-C until another one ends the process at once


class Interrupts:
    """The first Ctrl-C raises KeyboardInterrupt. Later ones are ignored, until the first one seems to be lost."""

    def __init__(self) -> None:
        self.first: float | None = None

    def __call__(self, _number: int, _frame: Any) -> None:
        if self.first is None:
            self.first = time.monotonic()
            sys.unraisablehook = lambda _: None  # if it is raised in a destructor, Python would show a traceback
            raise KeyboardInterrupt
        if time.monotonic() - self.first > _PATIENCE:
            os.write(2, b"pskd: stopped\n")
            os._exit(INTERRUPTED)


@contextlib.contextmanager
def exit_on_error() -> Iterator[None]:
    """Run a command; what ends it becomes a line and an exit code."""
    interrupts = Interrupts()
    with contextlib.suppress(ValueError):  # in a thread
        signal.signal(signal.SIGINT, interrupts)
    try:
        yield
    except SystemExit as stop:
        leave(WRONG if stop.code == 1 else stop.code)  # the parser exits with 1 when nobody reads its output
    except KeyboardInterrupt:
        leave(INTERRUPTED, "stopped")
    except BaseException as error:
        if interrupts.first is not None:
            leave(INTERRUPTED, "stopped")
        leave(*_code_and_line(error))


@contextlib.contextmanager
def same_command_continues() -> Iterator[None]:
    """Tell who presses Ctrl-C that nothing is lost."""
    try:
        yield
    except KeyboardInterrupt:
        leave(INTERRUPTED, "stopped; the same command continues")


def leave(code: Any, line: str = "") -> NoReturn:
    """Print a line, if there is one, and exit."""
    # Nothing interrupts us any more. What is only blocked here would still reach the threads of other libraries.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    with contextlib.suppress(ValueError):  # in a thread
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    if line:
        with contextlib.suppress(OSError, ValueError):
            print(f"pskd: {line}", file=sys.stderr, flush=True)
    _flush()
    sys.exit(code)


def _code_and_line(error: BaseException) -> tuple[int, str]:
    text = single_line(error)
    if isinstance(error, PskdError):
        return WRONG, text
    if isinstance(code := getattr(error, "exit_code", None), int):  # a training that can be resumed
        return code, text
    if isinstance(error, BrokenPipeError):
        return WRONG, ""  # nobody reads our output any more
    if isinstance(error, MemoryError) or "can't allocate memory" in text or "out of memory" in text:
        return WRONG, f"there is not enough memory ({text or 'of this machine'}): take smaller sizes"
    if isinstance(error, OSError):
        return WRONG, single_line(explain(error))
    if isinstance(error, RecursionError):
        return WRONG, "a file or setting is nested too deeply"
    if os.environ.get("PSKD_TRACEBACK"):
        traceback.print_exception(error)
    places = [frame for frame in traceback.extract_tb(error.__traceback__) if "pskd" in frame.filename]
    place = f" ({os.path.basename(places[-1].filename)}, line {places[-1].lineno})" if places else ""
    return UNEXPECTED, (
        f"unexpected {type(error).__name__}: {text}{place}: this is a bug in pskd, please report it"
        " (PSKD_TRACEBACK=1 shows more)"
    )


def _flush() -> None:
    """Write out what was printed; output that cannot be written is dropped, or Python would complain at its end."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
