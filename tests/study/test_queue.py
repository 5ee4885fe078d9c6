"""Several workers, one of them killed: every cell is trained once, and none is lost."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from helpers import SMALL
from optuna.trial import TrialState
from processes import exit_code, in_child

from pskd.errors import PskdError
from pskd.workbench.study.cells import Study, StudyFile
from pskd.workbench.study.queue import CellReturned, Queue, Standing, State, time_left
from pskd.workbench.study.worker import Worker, progress_line, status_lines
from pskd.workbench.train import loop
from pskd.workbench.train.loop import train

TEACHER = {"method": "tf_kd", "method.teacher": {"cell": {"method": "hard"}}}
SETTINGS: dict[str, Any] = {
    key: json.loads(value) for key, value in (word.split("=") for word in (*SMALL, "eval.every=100"))
}


def small_study(folder: Path, axes: dict[str, Any], **settings: Any) -> Study:
    """A study of runs that take a fraction of a second."""
    file = StudyFile(about="", recipe="digits", settings={**SETTINGS, **settings}, axes=axes)
    study = Study("small", file, (), folder, folder.name)
    study.save()
    return study


def worker(study: Study, url: str | None = None) -> None:
    Worker(Queue(study, url, heartbeat=1, grace=2), say=lambda _: None).work()


def trainings(study: Study) -> list[int]:
    """How often each cell was trained to its end: a run appends the lines of its epochs, and each epoch has one."""
    counts = []
    for key, cell in study.cells().items():
        lines = (study.run_folder(key) / "log.txt").read_text().splitlines()
        counts.append(sum(line.startswith(f"epoch {cell.config.train.epochs}/") for line in lines))
    return counts


def kill_one_of_three(study: Study, url: str | None) -> None:
    train(next(iter(study.cells().values())).config, study.folder / "warm")  # so that the children have all modules
    queue = Queue(study, url, heartbeat=1, grace=2)
    queue.advance()
    at_work = study.folder / "at work"

    def never_done() -> None:
        def rest(_record: Any) -> None:
            at_work.touch()
            time.sleep(600)

        loop.train = lambda *words, after_epoch, **options: train(*words, after_epoch=rest, **options)  # type: ignore
        worker(study, url)

    children = [in_child(never_done)]
    while not at_work.exists():
        time.sleep(0.02)
    children += [in_child(lambda: worker(study, url)) for _ in range(2)]
    os.kill(children[0], signal.SIGKILL)
    assert [exit_code(child) for child in children] == [-signal.SIGKILL, 0, 0]
    states = [standing.state for standing in queue.standings().values()]
    assert states == [State.DONE] * len(study.cells())
    assert trainings(study) == [1] * len(study.cells())
    dead = [trial for trial in queue.trials.trials if trial.state is TrialState.FAIL]
    assert dead  # its cell was given to another; a busy machine may miss more


AXES = {"method": {"CE": {"method": "hard"}, "TF-KD": TEACHER}, "seed": [0, 1, 2]}


def test_all_methods_of_a_seed_come_before_the_next_one(tmp_path: Path) -> None:
    """Also the one that has to wait for its teacher; while nothing else can be done, the next seed is begun."""
    axes = {"method": {"CE": {"method": "hard"}, "TF-KD": TEACHER, "PS-KD": {"method": "ps_kd"}}, "seed": [0, 1]}
    study = small_study(tmp_path, axes)
    queue, order = Queue(study), list[str]()

    def train(cell: Any, _: Any) -> float:
        order.append(f"{cell.labels['method']} {cell.labels['seed']}")
        if order == ["CE 0"]:  # meanwhile a second worker takes all that may be done
            queue.advance()
            queue.take(train)
            queue.advance()
            queue.take(train)
        study.run_folder(cell.key).mkdir()
        (study.run_folder(cell.key) / "result.json").write_text("{}")
        return 0.0

    while len(order) < 6:
        queue.advance()
        queue.take(train)
    assert order == ["CE 0", "PS-KD 0", "CE 1", "TF-KD 0", "TF-KD 1", "PS-KD 1"]


def test_one_of_three_workers_is_killed(tmp_path: Path) -> None:
    kill_one_of_three(small_study(tmp_path, AXES), None)


def test_one_of_three_workers_is_killed_on_postgresql(tmp_path: Path, postgresql: str) -> None:
    kill_one_of_three(small_study(tmp_path, AXES), postgresql)


def test_a_worker_killed_before_its_first_sign_of_life_is_missed(tmp_path: Path) -> None:
    study = small_study(tmp_path, {"seed": [0]})
    queue = Queue(study, heartbeat=1, grace=600)
    queue.advance()
    with pytest.warns(UserWarning, match="optimize"):
        queue.trials.ask()  # taken, and nothing more is heard
    assert next(iter(queue.advance().values())).state is State.RUNNING
    queue.grace = 0
    time.sleep(0.01)
    assert next(iter(queue.advance().values())).state is State.WAITING
    worker(study)
    assert trainings(study) == [1]


def test_a_failed_cell_does_not_stop_the_others(tmp_path: Path) -> None:
    axes = {"method": {"broken": {"method": "hard", "optim.lr": 1e30}, "CE": {"method": "hard"}}, "seed": [0]}
    axes["method"]["student"] = {
        "method": "tf_kd",
        "method.teacher": {"cell": {"method": "hard", "optim.lr": 1e30}},
    }
    study = small_study(tmp_path, axes)
    worker(study)
    queue = Queue(study)
    broken, plain, student = queue.standings().values()
    assert (broken.state, plain.state, student.state) == (State.FAILED, State.DONE, State.BLOCKED)
    assert "the loss is not finite in epoch 1" in (broken.error or "")
    text = "\n".join(status_lines(queue))
    assert "1 of 3 cells done · 1 failed · 1 blocked" in text
    assert "failed: method broken · seed 0" in text
    queue.try_again()
    assert [standing.state for standing in queue.standings().values()] == [State.WAITING, State.DONE, State.NOT_READY]


def test_a_finished_cell_is_never_run_again(tmp_path: Path) -> None:
    study = small_study(tmp_path, {"seed": [0]})
    (key,) = study.cells()
    train(study.cells()[key].config, study.run_folder(key))
    before = (study.run_folder(key) / "result.json").stat().st_mtime_ns
    grown = small_study(tmp_path, {"seed": [0, 1]})
    worker(grown)
    assert (study.run_folder(key) / "result.json").stat().st_mtime_ns == before
    assert trainings(grown) == [1, 1]
    assert len(Queue(grown).trials.trials) == 1


def test_a_cell_that_stands_twice_in_the_queue_is_trained_once(tmp_path: Path) -> None:
    study = small_study(tmp_path, {"seed": [0]})
    queue = Queue(study)
    (key,) = study.cells()
    for _ in range(2):
        queue.trials.enqueue_trial({}, user_attrs={"cell": key})
    taken = []

    def meanwhile(cell: object, after_epoch: object) -> float:
        """While one worker trains the cell, another comes to the second trial."""
        taken.append("first")
        Queue(study).take(lambda cell, after_epoch: taken.append("second") or 0.0)  # type: ignore[func-returns-value]
        return 0.0

    queue.take(meanwhile)
    assert taken == ["first"]
    assert [trial.state for trial in queue.trials.trials] == [TrialState.COMPLETE, TrialState.PRUNED]


def test_an_interrupted_cell_goes_back_and_is_resumed(tmp_path: Path) -> None:
    study = small_study(tmp_path, {"seed": [0]}, epochs=1000)
    queue = Queue(study)
    queue.advance()
    child = in_child(lambda: worker(study))
    (key,) = study.cells()
    while not (study.run_folder(key) / "metrics.jsonl").exists():
        time.sleep(0.02)
    queue.stop()  # from anywhere
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (study.run_folder(key) / "checkpoints").exists()
    assert queue.standings()[key].state is State.WAITING
    queue.advance()

    def stop(cell: object, after_epoch: object) -> float:
        raise CellReturned

    queue.take(stop)
    assert queue.advance()[key].state is State.WAITING


def test_time_left() -> None:
    done, running = Standing(State.DONE, seconds=10.0), Standing(State.RUNNING, seconds=4.0)
    waiting = Standing(State.WAITING)
    assert time_left({"a": running}, 1) is None
    assert time_left({"a": done, "b": running, "c": waiting}, 2) == (6 + 10) / 2
    assert "0:00:16 left" in progress_line({"a": done, "b": running, "c": waiting})


def test_a_queue_that_cannot_be_opened_is_named_without_its_password(tmp_path: Path) -> None:
    study = small_study(tmp_path, {"seed": [0]})
    with pytest.raises(PskdError, match=r"127\.0\.0\.1:1/none cannot be opened") as error:
        Queue(study, "postgresql+psycopg://me:secret@127.0.0.1:1/none")
    assert "secret" not in str(error.value)


@pytest.mark.timeout(100)
def test_a_worker_that_dies_before_its_first_sign_of_life_is_found(tmp_path: Path) -> None:
    """A killed worker's trial has no heartbeat then, and Optuna never finds it stale."""
    study = small_study(tmp_path / "study", {"seed": [0]})

    def dies() -> None:
        queue = Queue(study, heartbeat=1, grace=2)

        def die(_trial: int) -> None:
            time.sleep(1)  # for as long as the worker goes on with its cell
            os.kill(os.getpid(), signal.SIGKILL)

        queue.storage.record_heartbeat = die  # type: ignore[method-assign]
        queue.advance()
        queue.take(lambda _cell, _after: time.sleep(600) or 0.0)  # type: ignore[func-returns-value]

    assert exit_code(in_child(dies)) == -signal.SIGKILL
    worker(study)
    assert trainings(study) == [1]
