"""A study whose database is away, whose queue is damaged, whose folder cannot be written: all of it gets done."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from chaos import equal
from helpers import small
from processes import exit_code, in_child, obey_permissions
from small_studies import small_study, trainings, work
from sqlalchemy.exc import OperationalError

from pskd.errors import PskdError
from pskd.workbench.study import queue as queues
from pskd.workbench.study import storage
from pskd.workbench.study.cells import Study
from pskd.workbench.study.queue import Queue, State
from pskd.workbench.train.loop import train


def all_done(study: Study, url: str | None = None) -> bool:
    standings = Queue(study, url).standings().values()
    print(*standings, sep="\n")  # what a failure shows
    return all(standing.state is State.DONE for standing in standings)


def wait_for(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + 240
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def finished(study: Study) -> int:
    return len(list(study.runs.glob("*/result.json")))


def test_a_database_that_is_restarted_twice(tmp_path: Path, server: Any) -> None:
    study = small_study(tmp_path / "study", 2, epochs=6)
    first = next(iter(study.cells().values()))
    train(first.config, tmp_path / "undisturbed")  # and so the children have all modules
    queue = Queue(study, server.url)
    queue.advance()
    queue.storage.engine.dispose()
    children = [in_child(lambda: work(study, server.url)) for _ in range(2)]
    for done, mode, away in ((1, "fast", 0.0), (2, "immediate", 3.0)):
        wait_for(lambda done=done: finished(study) >= done)  # type: ignore[misc]
        server.stop(mode)
        time.sleep(away)
        server.start()
    assert [exit_code(child) for child in children] == [0, 0]  # no worker is left over, none has failed
    assert all_done(study, server.url)
    assert equal(study.run_folder(first.key), tmp_path / "undisturbed")


def test_a_training_does_not_wait_for_the_database(tmp_path: Path, server: Any) -> None:
    settings = {"data.val_fraction": 0.2, "eval.every": 1, "epochs": 4}
    study = small_study(tmp_path / "pruned", 1, prune=True, **settings)
    queue = Queue(study, server.url, heartbeat=1, grace=60)
    queue.advance()

    def training(cell: Any, after_epoch: Any) -> float:
        server.stop("fast")
        result = train(cell.config_in(study.runs), study.run_folder(cell.key), after_epoch=after_epoch)
        threading.Timer(0.5, server.start).start()  # it is back before the result is told
        return float(result["top1_error"])

    queue.take(training)
    assert finished(study) == 1
    assert sum(trial.state.name == "COMPLETE" for trial in queue.trials.trials) == 1


def test_a_database_that_stays_away_ends_in_one_line(tmp_path: Path) -> None:
    calls, lines = [], []

    def unreachable() -> None:
        calls.append(1)
        raise OperationalError("SELECT 1", {}, Exception("the server\nis gone"), connection_invalidated=True)

    message = r"the queue is away .the server is gone.: run the command again when it is back"
    with pytest.raises(storage.DatabaseUnreachable, match=message):
        storage.repeat(unreachable, 0.5, lines.append)
    assert 3 <= len(calls) <= 6  # less and less often
    assert len(lines) == 1
    with storage.call_once(), pytest.raises(OperationalError):
        storage.repeat(unreachable, 60)


def test_temporary_errors() -> None:
    import sqlite3

    for text, passes in (("database is locked", True), ("attempt to write a readonly database", True)):
        assert storage.is_temporary(OperationalError("", {}, sqlite3.OperationalError(text))) is passes
    assert not storage.is_temporary(OperationalError("", {}, sqlite3.OperationalError("no such table: trials")))
    assert not storage.is_temporary(ValueError("x"))


@pytest.mark.parametrize("damage", ["bytes", "cut off", "text", "another database"])
def test_a_damaged_queue_is_replaced(damage: str, tmp_path: Path) -> None:
    study, lines = small_study(tmp_path, 1), []
    work(study)
    file = tmp_path / "queue.db"
    content = file.read_bytes()
    if damage == "bytes":
        file.write_bytes(content[:5000] + os.urandom(20_000) + content[25_000:])
    elif damage == "cut off":
        file.write_bytes(content[: len(content) // 2])
    elif damage == "text":
        file.write_text("no database\n" * 1000)
    else:
        import sqlite3

        file.unlink()
        sqlite3.connect(file).execute("CREATE TABLE other (x)").connection.commit()
    before = file.read_bytes()
    grown = small_study(tmp_path, 2)
    queue = Queue(grown, say=lines.append)
    assert "is damaged" in lines[0]
    assert (tmp_path / "queue.damaged-1.db").read_bytes() == before
    states = [standing.state for standing in queue.standings().values()]
    assert states.count(State.DONE) == 2
    work(grown)
    assert all_done(grown)


@pytest.mark.parametrize("kind", ["a folder", "a pipe", "a link"])
def test_a_queue_that_is_no_file(kind: str, tmp_path: Path) -> None:
    study, place = small_study(tmp_path / "study", 1), tmp_path / "study" / "queue.db"
    {"a folder": place.mkdir, "a pipe": lambda: os.mkfifo(place), "a link": lambda: place.symlink_to(tmp_path / "x")}[
        kind
    ]()
    with pytest.raises(PskdError, match=r"queue\.db is (no ordinary file|a symbolic link)"):
        Queue(study)
    assert not (tmp_path / "x").exists()


def test_a_queue_that_has_another_name_elsewhere_is_not_written_there(tmp_path: Path) -> None:
    study = small_study(tmp_path / "study", 1)
    Queue(study).advance()
    os.link(tmp_path / "study" / "queue.db", tmp_path / "mine")
    before = (tmp_path / "mine").read_bytes()
    Queue(study).stop()
    assert Queue(study).stops == 1
    assert (tmp_path / "mine").read_bytes() == before


def test_one_clock_is_an_hour_off(tmp_path: Path) -> None:
    study = small_study(tmp_path / "study", 2)
    train(small("epochs=1"), tmp_path / "warm")

    def ahead() -> None:
        class Clock(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> datetime:
                return datetime.now(tz) + timedelta(hours=1)

        queues.datetime = Clock  # type: ignore[misc]
        work(study)

    children = [in_child(ahead), in_child(lambda: work(study))]
    assert [exit_code(child) for child in children] == [0, 0]
    assert all_done(study)
    assert trainings(study) == [1] * 4


def test_the_folder_is_read_only_for_a_while(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    study = small_study(folder, 2, epochs=6)
    train(small("epochs=1"), tmp_path / "warm")
    Queue(study).advance()

    def obedient() -> None:
        obey_permissions()
        work(study)

    child = in_child(obedient)
    wait_for(lambda: list(study.runs.glob("*/metrics.jsonl")))
    places = [folder, study.runs, *study.runs.glob("*"), folder / "queue.db"]
    modes = {path: path.stat().st_mode for path in places}
    for path in places:
        path.chmod(0o555 if path.is_dir() else 0o444)
    time.sleep(2)
    for path, mode in modes.items():
        path.chmod(mode)
    assert exit_code(child) == 0
    assert all_done(study)


@pytest.mark.slow
def test_ctrl_c_twice_leaves_no_worker(tmp_path: Path) -> None:
    """A real command with two workers: both are gone when it has ended."""
    file = tmp_path / "long.yaml"
    file.write_text("about: x\nrecipe: digits\nsettings: {epochs: 100000}\naxes: {seed: [0, 1]}\n")
    command = [
        sys.executable,
        "-m",
        "pskd",
        "study",
        "run",
        str(file),
        "--out",
        str(tmp_path / "out"),
        "--workers",
        "2",
    ]
    owner = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: len(list((tmp_path / "out").glob("runs/*/metrics.jsonl"))) == 2)
    for _ in range(2):
        owner.send_signal(signal.SIGINT)
        time.sleep(0.2)
    assert owner.wait(60) == 130
    assert owner.stderr is not None
    assert owner.stderr.read() == "pskd: stopped; the same command continues\n"
    left = [path for path in Path("/proc").glob("[0-9]*/cmdline") if _mentions(path, str(tmp_path / "out"))]
    assert not left
    shutil.rmtree(tmp_path / "out")


def _mentions(path: Path, word: str) -> bool:
    try:
        return word in path.read_text()
    except OSError:
        return False
