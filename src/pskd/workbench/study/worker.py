"""Workers: processes that take cells from a study's queue and train them until nothing is left."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from pskd.errors import PskdError
from pskd.metrics.catalogue import primary
from pskd.workbench.runs.files import open_own
from pskd.workbench.runs.folder import InUse
from pskd.workbench.runs.trust import check_model, sandbox
from pskd.workbench.study.cells import Cell, Study
from pskd.workbench.study.queue import OPEN, AfterEpoch, CellReturned, Queue, Standing, State, time_left
from pskd.workbench.study.storage import DATABASE_ERRORS, PATIENCE, call_once
from pskd.workbench.train import loop

POLL = 1.0  # seconds between two looks at the queue
CREW = "PSKD_CREW"  # the process id of a worker's owner: the worker leaves when that process has died
TEMPORARY = (errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE, errno.ENOSPC, errno.EDQUOT)
MANY = 8  # most workers by default on a machine without accelerators: each holds a model and its data


class Worker:
    """One worker. It leaves when no cell runs or can still run, or when it or the study is asked to stop."""

    def __init__(self, queue: Queue, say: Callable[[str], None] = print) -> None:
        self.queue, self.say = queue, say
        self.asked = self.training = False

    def work(self) -> None:
        stops = self.queue.stops
        with _on_signals(self._stop, signal.SIGINT, signal.SIGTERM), _watch(lambda: self.queue.stops > stops):
            while not self.asked and self.queue.stops == stops:
                states = {standing.state for standing in self.queue.advance().values()}
                if State.WAITING in states:
                    self.queue.take(self._train)
                elif not states.isdisjoint(OPEN):
                    time.sleep(POLL)
                else:
                    return

    def _stop(self) -> None:
        self.asked = True
        if self.training:
            raise CellReturned

    def _train(self, cell: Cell, after_epoch: AfterEpoch) -> float:
        """Train a cell to its end; return the primary metric of its result, for people who look into the queue."""
        study = self.queue.study
        folder = study.run_folder(cell.key)
        self.say(f"\n{cell.name}: {folder}")
        self.training, patience = True, self.queue.storage.patience
        try:
            while not self.asked:
                try:
                    config = cell.config_in(study.runs)
                    if not study.allow_code:  # a study's folder may come from a stranger, too
                        config, notes = sandbox(config)
                        check_model(config)
                        for note in notes.values():
                            self.say(note)
                    result = loop.train(config, folder, resume=True, after_epoch=after_epoch)
                    name = primary(result)
                    return 0.0 if name is None else float(result[name])
                except InUse:  # a worker that was taken for dead is still training it
                    time.sleep(POLL)
                except PskdError as error:
                    cause = error.__cause__
                    if not isinstance(cause, OSError) or cause.errno not in TEMPORARY or patience <= 0:
                        raise
                    self.say(f"{error}; trying again")
                    pause = min(patience, 5 * POLL)
                    time.sleep(pause)
                    patience -= pause
            raise CellReturned
        except loop.Interrupted:
            self.asked = True
            raise CellReturned from None
        finally:
            self.training = False


@contextlib.contextmanager
def _on_signals(answer: Callable[[], None], *numbers: int) -> Iterator[None]:
    """Call ``answer`` at these signals. The training loop has its own answer meanwhile."""
    before = {number: signal.signal(number, lambda _number, _frame: answer()) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _watch(stop_is_asked: Callable[[], bool]) -> Iterator[None]:
    """Send this process one SIGTERM when the study is asked to stop, on whichever machine, or its owner has died."""
    over, owner = threading.Event(), os.environ.get(CREW, "")

    def look() -> None:
        while not over.wait(2 * POLL):
            asked = owner.isdecimal() and os.getppid() != int(owner)
            with contextlib.suppress(*DATABASE_ERRORS), call_once():  # it is asked again when it is back
                asked = asked or stop_is_asked()
            if asked:
                os.kill(os.getpid(), signal.SIGTERM)
                return

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class Crew:
    """Workers as processes of this machine, each with its share of the cores, or with a GPU of its own."""

    def __init__(self, study: Study, count: int, storage: str | None, patience: float = PATIENCE) -> None:
        self.study, self.count, self.storage, self.patience = study, count, storage, patience
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        for number in range(self.count):
            self.processes.append(self._start(number))

    def alive(self) -> int:
        """How many are at work; one that was killed is replaced."""
        for number, process in enumerate(self.processes):
            if (process.poll() or 0) < 0:
                self.processes[number] = self._start(number)
        return sum(process.poll() is None for process in self.processes)

    def stop(self) -> None:
        """Ask every worker to save and leave, and wait for that; another Ctrl-C ends them at once."""
        with _on_signals(self._kill, signal.SIGINT):
            for process in self.processes:
                process.terminate()
            for process in self.processes:
                process.wait()

    def log(self, number: int) -> Path:
        return self.study.folder / f"worker-{number}.log"

    def _kill(self) -> None:
        for process in self.processes:
            process.kill()  # a run can be killed at any instant

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        threads = str(max(1, (os.cpu_count() or 1) // self.count))
        environment = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, CREW: str(os.getpid())}
        if torch.cuda.is_available():
            visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(torch.cuda.device_count())))
            devices = visible.split(",")
            environment["CUDA_VISIBLE_DEVICES"] = devices[number % len(devices)]
        if self.storage is not None:  # not on the command line, where everybody can read its password
            environment["PSKD_STORAGE"] = self.storage
        command = [sys.executable, "-m", "pskd", "study", "work", str(self.study.folder)]
        command += ["--patience", f"{self.patience / 60:g}"]
        command += ["--allow-code"] if self.study.allow_code else []
        # In a process group of its own: Ctrl-C reaches only the owner, who asks every worker once. Not in a session of
        # its own: Linux gives each session the same share of the cores, whatever its `nice`.
        with open_own(self.log(number), "ab") as log:
            streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            return subprocess.Popen(command, env={**os.environ, **environment}, process_group=0, **streams)


def run(
    study: Study,
    count: int | None,
    storage: str | None,
    say: Callable[[str], None] = print,
    patience: float = PATIENCE,
) -> bool:
    """Train all cells of a study with workers on this machine; return whether every one is done or was pruned.

    Raises KeyboardInterrupt when the study is asked to stop before that, here or anywhere else.
    """
    study.save()
    queue = Queue(study, storage, patience=patience, say=say)
    stops = queue.stops
    queue.try_again()
    standings = queue.advance()
    todo = sum(standing.state in OPEN for standing in standings.values())
    say(f"{study.name}: {len(standings)} cells, {todo} to run, in {study.folder}")
    if todo:
        with _on_signals(_interrupt, signal.SIGTERM):  # as at Ctrl-C, no worker is left behind
            crew = Crew(study, min(todo, count or default_workers()), storage, patience)
            try:
                crew.start()
                _wait_for(crew, queue, stops, say)
            finally:
                crew.stop()
    standings = queue.standings()
    for line in failures(queue, standings):
        say(line)
    return all(standing.state in (State.DONE, State.PRUNED) for standing in standings.values())


def _interrupt() -> None:
    raise KeyboardInterrupt


def _wait_for(crew: Crew, queue: Queue, stops: int, say: Callable[[str], None]) -> None:
    """Wait until no worker is left; print the progress whenever it changes."""
    before = None
    while crew.alive():
        standings = queue.standings()
        if (counts := Counter(standing.state for standing in standings.values())) != before:
            before = counts
            say(progress_line(standings))
        if queue.stops > stops:  # a worker that was just starting has not noticed
            raise KeyboardInterrupt
        time.sleep(POLL)
    if any(standing.state in OPEN for standing in queue.standings().values()):
        if queue.stops > stops:
            raise KeyboardInterrupt
        raise PskdError(f"all workers have left before the end: look at {crew.log(0)}, then run the command again")


def progress_line(standings: Mapping[str, Standing]) -> str:
    """`7 of 15 cells done · 2 running · 6 waiting · 0:01:20 left`"""
    counts = Counter(standing.state for standing in standings.values())
    parts = [f"{counts[State.DONE]} of {len(standings)} cells done"]
    parts += [f"{counts[state]} {state}" for state in State if counts[state] and state is not State.DONE]
    if any(counts[state] for state in OPEN):
        left = time_left(standings, workers=counts[State.RUNNING])
        parts.append("time left not known yet" if left is None else f"{timedelta(seconds=round(left))} left")
    return " · ".join(parts)


def status_lines(queue: Queue) -> list[str]:
    """A line for each cell, and one for all."""
    standings = queue.standings()
    lines = []
    for key, standing in standings.items():
        took = "" if standing.seconds is None else str(timedelta(seconds=round(standing.seconds)))
        lines.append(f"{key}  {standing.state:<9}  {took:>8}  {queue.cells[key].name}")
    return [*lines, "", progress_line(standings), *failures(queue, standings)]


def failures(queue: Queue, standings: Mapping[str, Standing]) -> list[str]:
    """Each cell that failed with its error, and how many cells are blocked by them."""
    failed = [(key, standing) for key, standing in standings.items() if standing.state is State.FAILED]
    lines = [f"failed: {queue.cells[key].name} ({key}): {standing.error}" for key, standing in failed]
    if blocked := sum(standing.state is State.BLOCKED for standing in standings.values()):
        lines.append(f"blocked: {blocked} cells that need a failed one")
    return lines


def default_workers() -> int:
    return torch.cuda.device_count() or min(MANY, os.cpu_count() or 1)
