"""What a person sees of a training: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import TracebackType
from typing import Any

from pskd.errors import printable

SLOW = 0.7  # seconds, after which what a person waits for is named
SILENCE = 60  # seconds, after which even a screen that keeps every line gets one of an unfinished epoch


@contextlib.contextmanager
def print_if_slow(text: str) -> Iterator[None]:
    """Print a line if what is done here takes longer than a person waits for one, on the first process."""

    def say() -> None:
        with contextlib.suppress(OSError, ValueError):  # closed or full: the next line of the main thread says so
            print(printable(text), flush=True)

    timer = threading.Timer(SLOW, say)
    timer.daemon = True
    if os.environ.get("RANK", "0").strip() == "0":  # whether it is a rank at all is asked where the group is made
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


class Progress:
    """Progress over all steps of a run. ``shown`` is false on every process but the leader."""

    def __init__(self, total: int, done: int, unit: str, *, shown: bool, log: Callable[[str], None]) -> None:
        self._total, self._done, self._unit, self._shown, self._log = total, done, unit, shown, log
        self._begun, self._begun_at, self._drawn, self._said = time.monotonic(), done, 0.0, 0.0
        self._epoch_items, self._epoch_begun = 0, time.monotonic()
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def step(self, items: int, describe: Callable[[], str]) -> None:
        """One more step, of ``items`` samples; ``describe`` is called at most ten times a second."""
        self._done += 1
        self._epoch_items += items
        now = time.monotonic()
        if self._bar is not None and now - self._drawn > 0.1:
            self._drawn = now
            self._bar.update(self._task, completed=self._done, description=f"{describe()} · {self._pace()}")
        elif self._bar is None and self._shown and now - max(self._said, self._drawn) > SILENCE:
            self._drawn = now
            print(printable(f"{describe()} · {self._pace()} · {self.left()} left"), flush=True)

    def _pace(self) -> str:
        return f"{self.speed():,.0f} {self._unit}/s"

    def speed(self) -> float:
        """Samples per second in this epoch."""
        return self._epoch_items / max(1e-9, time.monotonic() - self._epoch_begun)

    def start_epoch(self) -> None:
        self._epoch_items, self._epoch_begun = 0, time.monotonic()

    def line(self, text: str, *, minor: bool = False) -> None:
        """A line that stays, on the screen and in the log; on the screen a minor one only after 10 s of silence."""
        if not self._shown:
            return
        text = printable(text)
        self._log(text)
        if minor and time.monotonic() - self._said < 10:
            return
        self._said = time.monotonic()
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            print(text, flush=True)

    def left(self) -> str:
        """Estimated time until the last step, as h:mm:ss."""
        made = self._done - self._begun_at
        seconds = (time.monotonic() - self._begun) / max(1, made) * (self._total - self._done)
        return str(timedelta(seconds=round(seconds)))
