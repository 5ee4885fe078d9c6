"""Several workers, one of them killed: every cell is trained once, and none is lost."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState
from processes import exit_code, in_child
from small_studies import small_study, trainings, work

from pskd.errors import PskdError
from pskd.workbench.study import queue as queues
from pskd.workbench.study.queue import CellReturned, Queue, Standing, State, time_left
from pskd.workbench.study.storage import DatabaseUnreachable
from pskd.workbench.study.worker import progress_line, status_lines
from pskd.workbench.train import loop
from pskd.workbench.train.loop import train

TEACHER = {"method": "tf_kd", "method.teacher": {"cell": {"method": "hard"}}}
AXES = {"method": {"CE": {"method": "hard"}, "TF-KD": TEACHER}, "seed": [0, 1, 2]}


def test_all_methods_of_a_seed_come_before_the_next_one(tmp_path: Path) -> None:
    """Also the one that has to wait for its teacher; while nothing else can be done, the next seed is begun."""
    axes = {"method": {"CE": {"method": "hard"}, "TF-KD": TEACHER, "PS-KD": {"method": "ps_kd"}}, "seed": [0, 1]}
    study = small_study(tmp_path, axes)
    queue, second, order = Queue(study), Queue(study), list[str]()

    def train(cell: Any, _: Any) -> float:
        order.append(f"{cell.labels['method']} {cell.labels['seed']}")
        if order == ["CE 0"]:  # meanwhile a second worker takes all that may be done
            for _ in range(2):
                second.advance()
                second.take(train)
        study.run_folder(cell.key).mkdir()
        (study.run_folder(cell.key) / "result.json").write_text("{}")
        return 0.0

    while len(order) < 6:
        queue.advance()
        queue.take(train)
    assert order == ["CE 0", "PS-KD 0", "CE 1", "TF-KD 0", "TF-KD 1", "PS-KD 1"]


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_one_of_three_workers_is_killed(tmp_path: Path, database: str, request: pytest.FixtureRequest) -> None:
    study = small_study(tmp_path, AXES)
    url = request.getfixturevalue(database) if database == "postgresql" else None
    train(next(iter(study.cells().values())).config, study.folder / "warm")  # so that the children have all modules
    queue = Queue(study, url, heartbeat=1, grace=2)
    queue.advance()
    at_work = study.folder / "at work"

    def never_done() -> None:
        def rest(_record: Any) -> None:
            at_work.touch()
            time.sleep(600)

        loop.train = lambda *words, after_epoch, **options: train(*words, after_epoch=rest, **options)  # type: ignore
        work(study, url)

    children = [in_child(never_done)]
    while not at_work.exists():
        time.sleep(0.02)
    children += [in_child(lambda: work(study, url)) for _ in range(2)]
    os.kill(children[0], signal.SIGKILL)
    assert [exit_code(child) for child in children] == [-signal.SIGKILL, 0, 0]
    states = [standing.state for standing in queue.standings().values()]
    assert states == [State.DONE] * len(study.cells())
    assert trainings(study) == [1] * len(study.cells())
    dead = [trial for trial in queue.trials.trials if trial.state is TrialState.FAIL]
    assert dead[0].user_attrs["begun"]  # its cell was given to another; a busy machine may miss more


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
    work(study)
    assert trainings(study) == [1]


def test_a_failed_cell_does_not_stop_the_others(tmp_path: Path) -> None:
    axes = {"method": {"broken": {"method": "hard", "optim.lr": 1e30}, "CE": {"method": "hard"}}, "seed": [0]}
    axes["method"]["student"] = {
        "method": "tf_kd",
        "method.teacher": {"cell": {"method": "hard", "optim.lr": 1e30}},
    }
    study = small_study(tmp_path, axes)
    work(study)
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
    work(grown)
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
    child = in_child(lambda: work(study))
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


def worker_dies(queue: Queue) -> None:
    """What is left of a worker that took the next trial and died."""
    with pytest.warns(UserWarning, match="optimize"):
        trial = queue.trials.ask()
    trial.set_user_attr("begun", True)
    dead = queue.trials.tell(trial, state=TrialState.FAIL)
    queues._retry(queue.trials, dead)


def test_a_cell_whose_workers_die_is_retried_five_times(tmp_path: Path) -> None:
    study = small_study(tmp_path, {"seed": [0]})
    queue, (key,) = Queue(study), study.cells()

    def stop(_cell: object, _after_epoch: object) -> float:
        raise CellReturned

    queue.advance()
    for _ in range(queues.RETRIES):
        worker_dies(queue)
        assert queue.trials.trials[-1].user_attrs == {"cell": key}  # nothing else of the dead one
    queue.take(stop)
    assert queue.advance()[key].state is State.WAITING  # a stop is no death
    for _ in range(queues.RETRIES + 1):
        worker_dies(queue)
    assert queue.advance()[key] == Standing(State.FAILED, "its worker died 6 times (out of memory?)")
    assert len(queue.trials.get_trials(states=queues.LIVE)) == 0


@pytest.mark.parametrize("fails", [False, True])
def test_a_worker_that_was_taken_for_dead_goes_on(tmp_path: Path, fails: bool) -> None:
    """Its trial is told as failed meanwhile; Optuna then refuses the result, and the run folder has it."""
    study = small_study(tmp_path, {"seed": [0]})
    queue = Queue(study)
    queue.advance()

    def train(_cell: object, _after_epoch: object) -> float:
        Queue(study).trials.tell(0, state=TrialState.FAIL)
        if fails:
            raise RuntimeError
        return 0.0

    queue.take(train)
    assert [trial.state for trial in queue.trials.trials] == [TrialState.FAIL]


def test_a_database_that_stays_away_at_the_end_of_a_cell_is_the_error(tmp_path: Path) -> None:
    queue = Queue(small_study(tmp_path, {"seed": [0]}))
    queue.advance()

    def unreachable(*_: object) -> None:
        raise DatabaseUnreachable("the queue is away")

    queue.storage.record_heartbeat = lambda _: None  # type: ignore[method-assign]

    def train(_cell: object, _after_epoch: object) -> float:
        queue.storage.get_trial = queue.storage.set_trial_state_values = unreachable  # type: ignore
        return 0.0

    with pytest.raises(DatabaseUnreachable, match="the queue is away"):
        queue.take(train)


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
