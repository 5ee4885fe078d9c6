"""The progress of a training: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from pskd.errors import printable

SLOW = 0.7  # seconds, after which a line tells what is being waited for
SILENCE = 60  # seconds, after which plain output gets a line of an unfinished epoch


@contextlib.contextmanager
def print_if_slow(text: str) -> Iterator[None]:
    """Print a line, on the first process, if the body takes longer than ``SLOW``."""

    def show() -> None:
        with contextlib.suppress(OSError, ValueError):  # closed or full: the main thread will report it
            print(printable(text), flush=True)

    timer = threading.Timer(SLOW, show)
    timer.daemon = True
    if os.environ.get("RANK", "0").strip() == "0":  # the group checks later whether it is a number
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


class Progress:
    """Progress over all steps of a run. ``shown`` is false on every process but the leader."""

    def __init__(self, total: int, done: int, unit: str, *, shown: bool, log: Callable[[str], None]) -> None:
        self._total, self._done, self._unit, self._shown, self._log = total, done, unit, shown, log
        self._begun, self._done_before, self._drawn, self._printed = time.monotonic(), done, 0.0, 0.0
        self.start_epoch()
        self._bar: Any = None

    def __enter__(self) -> Progress:
        if self._shown and sys.stdout.isatty():
            from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            columns = (BarColumn(bar_width=24), TextColumn("{task.description}"), TimeRemainingColumn())
            self._bar = Bar(*columns, transient=True)
            self._bar.start()
            self._task = self._bar.add_task("starting", total=self._total, completed=self._done)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def step(self, items: int, describe: Callable[[], str]) -> None:
        """One more step, of ``items`` samples; ``describe`` is called at most ten times a second."""
        self._done += 1
        self._epoch_items += items
        now = time.monotonic()
        if self._bar is not None and now - self._drawn > 0.1:
            self._drawn = now
            self._bar.update(self._task, completed=self._done, description=f"{describe()} · {self.speed()}")
        elif self._bar is None and self._shown and now - max(self._printed, self._drawn) > SILENCE:
            self._drawn = now
            print(printable(f"{describe()} · {self.speed()} · {self.left()} left"), flush=True)

    def speed(self) -> str:
        """Samples per second in this epoch, such as "1,200 img/s"."""
        return f"{self._epoch_items / max(1e-9, time.monotonic() - self._epoch_begun):,.0f} {self._unit}/s"

    def start_epoch(self) -> None:
        self._epoch_items, self._epoch_begun = 0, time.monotonic()

    def line(self, text: str, *, minor: bool = False) -> None:
        """Print and log a line. A minor one is printed only when nothing was printed for 10 s."""
        if not self._shown:
            return
        text = printable(text)
        self._log(text)
        if minor and time.monotonic() - self._printed < 10:
            return
        self._printed = time.monotonic()
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            print(text, flush=True)

    def left(self) -> str:
        """Estimated time until the last step, as h:mm:ss."""
        seconds_per_step = (time.monotonic() - self._begun) / max(1, self._done - self._done_before)
        seconds = seconds_per_step * (self._total - self._done)
        return str(timedelta(seconds=round(seconds)))
