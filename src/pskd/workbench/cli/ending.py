"""How a command ends: whatever stops it, in one line on standard error and with an exit code."""

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
from pskd.workbench.runs.files import in_words

WRONG, UNEXPECTED, INTERRUPTED = 2, 70, 130
_PATIENCE = 3.0  # seconds after a Ctrl-C until another one ends the process at once


class Interrupts:
    """The first Ctrl-C raises KeyboardInterrupt. Those that follow it are heard only where it seems to be lost."""

    def __init__(self) -> None:
        self.first: float | None = None

    def __call__(self, _number: int, _frame: Any) -> None:
        if self.first is None:
            self.first = time.monotonic()
            sys.unraisablehook = lambda _: None  # where it comes up in a destructor, Python would show a traceback
            raise KeyboardInterrupt
        if time.monotonic() - self.first > _PATIENCE:
            os.write(2, b"pskd: stopped\n")
            os._exit(INTERRUPTED)


@contextlib.contextmanager
def exit_on_error() -> Iterator[None]:
    """Around a command: what ends it becomes a line and an exit code."""
    interrupts = Interrupts()
    with contextlib.suppress(ValueError):  # of a thread
        signal.signal(signal.SIGINT, interrupts)
    try:
        yield
    except SystemExit as stop:
        leave(WRONG if stop.code == 1 else stop.code)  # 1 is the parser's word for a reader that has gone away
    except KeyboardInterrupt:
        leave(INTERRUPTED, "stopped")
    except BaseException as error:
        if interrupts.first is not None:
            leave(INTERRUPTED, "stopped")
        leave(*_what(error))


def leave(code: Any, line: str = "") -> NoReturn:
    """Say a line, if there is one, and exit."""
    _deaf()
    if line:
        with contextlib.suppress(OSError, ValueError):
            print(f"pskd: {line}", file=sys.stderr, flush=True)
    _flush()
    sys.exit(code)


def _what(error: BaseException) -> tuple[int, str]:
    """Exit code and line for an exception."""
    if isinstance(error, PskdError):
        return WRONG, single_line(error)
    if isinstance(error, BrokenPipeError):
        return WRONG, ""  # whoever read our output has seen enough
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error) or "out of memory" in str(error):
        return WRONG, f"there is not enough memory ({single_line(error) or 'of this machine'}): take smaller sizes"
    if isinstance(error, OSError):
        return WRONG, single_line(in_words(error))
    if isinstance(error, RecursionError):
        return WRONG, "something that was read is nested too deeply"
    if os.environ.get("PSKD_TRACEBACK"):
        traceback.print_exception(error)
    places = [frame for frame in traceback.extract_tb(error.__traceback__) if "pskd" in frame.filename]
    place = f" ({os.path.basename(places[-1].filename)}, line {places[-1].lineno})" if places else ""
    return UNEXPECTED, (
        f"unexpected {type(error).__name__}: {single_line(error)}{place}: this is a mistake of pskd, please report it"
        " (PSKD_TRACEBACK=1 shows more)"
    )


def _deaf() -> None:
    """Nothing more can be interrupted: we are leaving. Other libraries' threads hear what is only blocked here."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    with contextlib.suppress(ValueError):  # of a thread
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _flush() -> None:
    """Write out what was printed; where that cannot be, nothing is left for Python to complain about at its end."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
