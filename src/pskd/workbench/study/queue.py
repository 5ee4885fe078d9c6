"""The queue of a study's cells, over Optuna: who is next, who is at work, who failed. Any number of workers share it.

A cell that may run is a waiting trial with the cell's key in its user attributes. Every worker may put a cell there:
of two trials of one cell the lower-numbered one counts, the other is dropped when its turn comes. Whether a cell is
done is told by its run folder, not by the queue.
"""

from __future__ import annotations

import contextlib
import math
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.storages import RetryHeartbeatStaleTrialCallback, fail_stale_trials
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from pskd.errors import PskdError
from pskd.metrics.catalogue import METRICS, primary
from pskd.workbench.study import storage
from pskd.workbench.study.cells import Cell, Study

RETRIES = 5  # of a cell whose worker died; one that kills every worker must come to an end
LIVE = (TrialState.WAITING, TrialState.RUNNING)

optuna.logging.set_verbosity(optuna.logging.ERROR)


@contextlib.contextmanager
def _experimental() -> Iterator[None]:
    """Heartbeats are an experimental part of Optuna, as it says on every use."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        warnings.filterwarnings("ignore", "Heartbeat of storage")  # our own thread sends it
        yield


class State(StrEnum):
    DONE = "done"
    RUNNING = "running"
    WAITING = "waiting"
    NOT_READY = "not ready"  # a cell that it needs has not finished
    FAILED = "failed"
    BLOCKED = "blocked"  # a cell that it needs has failed or was pruned
    PRUNED = "pruned"  # given up, because others were better


AfterEpoch = Callable[[Mapping[str, Any]], None]
OPEN = (State.RUNNING, State.WAITING, State.NOT_READY)


class Standing(NamedTuple):
    """Where a cell stands; ``seconds`` that it took, or has been running."""

    state: State
    error: str | None = None
    seconds: float | None = None


class CellReturned(BaseException):
    """The worker was asked to stop: the cell goes back into the queue. No error, wherever the signal comes."""


class Queue:
    """One study's queue.

    Args:
        study: whose cells these are.
        url: Optuna's name of a database; None is a SQLite file in the study's folder.
        heartbeat: seconds between two signs of life of a running cell.
        grace: seconds without one after which its worker counts as dead.
        patience: seconds that the database may be away.
        waits: whether it may be away at the beginning, too.
        say: shows a line, on what was found and what is waited for.
    """

    @_experimental()
    def __init__(
        self,
        study: Study,
        url: str | None = None,
        *,
        heartbeat: int = 15,
        grace: int = 60,
        patience: float = storage.PATIENCE,
        waits: bool = False,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.study, self.cells, self.grace, self.heartbeat = study, study.cells(), grace, heartbeat
        with storage.alone(study.folder) if url is None else contextlib.nullcontext():
            self._connect(url or storage.own_file(study.folder, say), patience, waits, say)

    def _connect(self, url: str, patience: float, waits: bool, say: Callable[[str], None]) -> None:
        try:
            storage.waited(lambda: self._open(url, patience), patience if waits else 0.0, say)
        except ImportError as error:
            raise PskdError(
                f"{_shown(url)}: its database driver is not installed ({error.__cause__ or error})"
            ) from None
        except (
            SQLAlchemyError,
            optuna.exceptions.OptunaError,
            storage.DatabaseUnreachable,
            RuntimeError,
            ValueError,
        ) as error:
            cause = error.__cause__ if isinstance(error, storage.DatabaseUnreachable) and error.__cause__ else error
            raise PskdError(f"the queue {_shown(url)} cannot be opened: {storage.reason(cause)}") from None

    def _open(self, url: str, patience: float) -> None:
        self.storage = storage.PatientStorage(
            url,
            patience=patience,
            heartbeat_interval=self.heartbeat,
            grace_period=self.grace,
            heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(max_retry=RETRIES),
        )
        with storage.impatient():
            self.trials = optuna.create_study(
                storage=self.storage,
                study_name=self.study.identity,
                sampler=optuna.samplers.RandomSampler(),
                pruner=optuna.pruners.MedianPruner(n_warmup_steps=_longest(self.cells) // 3),
                load_if_exists=True,
            )

    @_experimental()
    def standings(self) -> dict[str, Standing]:
        """Where every cell stands now."""
        trials = self._newest()
        standings: dict[str, Standing] = {}
        for key, cell in self.cells.items():
            own = self._standing(key, trials.get(key))
            if own is None:
                states = [standings[need].state for need in cell.needs]
                if not {State.FAILED, State.BLOCKED, State.PRUNED}.isdisjoint(states):
                    own = Standing(State.BLOCKED)
                else:
                    ready = all(state is State.DONE for state in states)
                    own = Standing(State.WAITING if ready else State.NOT_READY)
            standings[key] = own
        return standings

    @_experimental()
    def advance(self) -> dict[str, Standing]:
        """Put every cell that may run and is not there yet into the queue; returns where each stands.

        Cells of a later seed are held back while one of an earlier seed is not ready, unless nothing else is waiting.
        """
        fail_stale_trials(self.trials)
        self._fail_never_begun()
        standings, trials = self.standings(), self._newest()
        queued = {key for key, trial in trials.items() if trial.state in LIVE}
        waiting = any(trials[key].state is TrialState.WAITING for key in queued)
        unready: int | None = None  # the seed of the first cell that is not ready
        for key, standing in standings.items():
            seed = self.cells[key].config.train.seed
            if standing.state is State.NOT_READY and unready is None:
                unready = seed
            if standing.state is State.WAITING and key not in queued and not (waiting and unready not in (None, seed)):
                self._enqueue(key)
                waiting = True
        return standings

    def try_again(self) -> None:
        """Put cells that failed, or whose run folder is gone, into the queue once more."""
        for key, standing in self.standings().items():
            if standing.state is State.FAILED or (standing.state is State.DONE and not self._finished(key)):
                self._enqueue(key)

    def take(self, train: Callable[[Cell, AfterEpoch], float]) -> None:
        """Take the next waiting cell, if there still is one, and train it.

        ``train`` has to show the record of every epoch to its second argument. What it raises becomes the cell's error;
        ``CellReturned`` puts the cell back.
        """
        with _experimental():
            trial = self.trials.ask()
        with self._signs_of_life(trial):
            key = trial.user_attrs.get("cell")
            value: float | None = None
            if key not in self.cells or self._finished(key) or self._is_taken(key, trial.number):
                state = TrialState.PRUNED
            else:
                try:
                    value, state = (
                        train(self.cells[key], lambda record: self._prune(trial, record)),
                        TrialState.COMPLETE,
                    )
                except optuna.TrialPruned:
                    state = TrialState.PRUNED
                    self._note(trial, "pruned", True)
                except CellReturned:
                    state = TrialState.FAIL
                    self._note(trial, "stopped", True)
                except Exception as error:  # whatever a training raises: the others go on
                    state = TrialState.FAIL
                    self._note(trial, "error", _one_line(error))
        if value is not None and not math.isfinite(value):
            value = 0.0
        # Where this worker was thought dead, its cell was given to another, which waits for the run folder meanwhile.
        with _experimental(), contextlib.suppress(optuna.exceptions.UpdateFinishedTrialError):
            self.trials.tell(trial.number, value, state, skip_if_finished=True)

    @contextlib.contextmanager
    def _signs_of_life(self, trial: Trial) -> Iterator[None]:
        """Say that a trial is being worked on, as long as it is; a database that is away is told later.

        It has begun once Optuna has its first sign: a worker that dies before is found by that note alone.
        """
        over = threading.Event()

        def say() -> None:
            begun = False
            while True:
                with (
                    contextlib.suppress(PskdError, SQLAlchemyError, optuna.exceptions.OptunaError),
                    storage.impatient(),
                ):
                    self.storage.record_heartbeat(trial._trial_id)
                    if not begun:
                        self._note(trial, "begun", True)
                        begun = True
                if over.wait(self.heartbeat):
                    return

        thread = threading.Thread(target=say, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _note(self, trial: Trial, name: str, value: Any) -> None:
        with contextlib.suppress(optuna.exceptions.UpdateFinishedTrialError):
            trial.set_user_attr(name, value)

    def _prune(self, trial: Trial, record: Mapping[str, Any]) -> None:
        if self.study.file.prune and "val" in record:
            name = primary(record["val"])
            if name is None:
                raise PskdError("prune: these runs have no primary metric to be compared by; leave prune out")
            # A training does not wait for the queue: where that is away, the run is compared after the next epoch.
            finished = optuna.exceptions.UpdateFinishedTrialError
            with contextlib.suppress(storage.DatabaseUnreachable, finished), storage.impatient():
                trial.report(METRICS[name].cost(float(record["val"][name])), record["epoch"])
                if trial.should_prune():
                    raise optuna.TrialPruned

    @property
    def stops(self) -> int:
        """How often this study was asked to stop: a worker leaves when it becomes more."""
        return int(self.trials.user_attrs.get("stops", 0))

    def stop(self) -> None:
        self.trials.set_user_attr("stops", self.stops + 1)

    def _standing(self, key: str, newest: FrozenTrial | None) -> Standing | None:
        """What run folder and newest trial say of a cell; None: it has yet to run."""
        seconds = None if newest is None else _seconds(newest)
        if self._finished(key) or (newest is not None and newest.state is TrialState.COMPLETE):
            return Standing(State.DONE, seconds=seconds)
        if newest is None:
            return None
        if newest.state is TrialState.PRUNED:
            return Standing(State.PRUNED, seconds=seconds)
        if newest.state is TrialState.RUNNING:
            return Standing(State.RUNNING, seconds=seconds)
        if newest.state is TrialState.FAIL and "error" in newest.user_attrs:
            return Standing(State.FAILED, newest.user_attrs["error"])
        if newest.state is TrialState.FAIL and len(_deaths(newest)) >= RETRIES:
            return Standing(State.FAILED, f"its worker died {RETRIES + 1} times (out of memory?)")
        return None

    def _newest(self) -> dict[str, FrozenTrial]:
        """The last trial of every cell that was not dropped."""
        newest: dict[str, FrozenTrial] = {}
        for trial in self.trials.get_trials(deepcopy=False):
            dropped = trial.state is TrialState.PRUNED and "pruned" not in trial.user_attrs
            if "cell" in trial.user_attrs and not dropped:
                newest[trial.user_attrs["cell"]] = trial
        return newest

    def _is_taken(self, key: str, number: int) -> bool:
        live = self.trials.get_trials(deepcopy=False, states=LIVE)
        return any(trial.user_attrs.get("cell") == key and trial.number < number for trial in live)

    def _fail_never_begun(self) -> None:
        """Give up trials that a worker took and died before its first sign of life: Optuna never finds them stale."""
        limit = datetime.now() - timedelta(seconds=self.grace)
        for trial in self.trials.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if "begun" not in trial.user_attrs and trial.datetime_start is not None and trial.datetime_start < limit:
                self.trials.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)

    def _finished(self, key: str) -> bool:
        return (self.study.run_folder(key) / "result.json").is_file()

    def _enqueue(self, key: str) -> None:
        self.trials.enqueue_trial({}, user_attrs={"cell": key})


def time_left(standings: Mapping[str, Standing], workers: int) -> float | None:
    """Seconds until all cells are done if the rest takes as long as those before; None while nothing is known."""
    took = [standing.seconds for standing in standings.values() if standing.state is State.DONE and standing.seconds]
    if not took:
        return None
    mean = sum(took) / len(took)
    left = [
        max(0.0, mean - (standing.seconds or 0.0)) if standing.state is State.RUNNING else mean
        for standing in standings.values()
        if standing.state in OPEN
    ]
    return sum(left) / max(1, min(workers, len(left)))


def _longest(cells: Mapping[str, Cell]) -> int:
    return max(cell.config.train.epochs for cell in cells.values())


def _deaths(trial: FrozenTrial) -> list[int]:
    """The numbers of the trials before this one whose worker died."""
    return list(RetryHeartbeatStaleTrialCallback.retry_history(trial))


def _seconds(trial: FrozenTrial) -> float | None:
    if trial.datetime_start is None:
        return None
    end = trial.datetime_complete or datetime.now()
    return max(0.0, (end - trial.datetime_start).total_seconds())  # another machine's clock may be ahead


def _one_line(error: Exception) -> str:
    text = (str(error).strip().splitlines() or [""])[0]
    return (text if isinstance(error, PskdError) else f"{type(error).__name__}: {text}")[:500]


def _shown(url: str) -> str:
    """A database's name without the password."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"
