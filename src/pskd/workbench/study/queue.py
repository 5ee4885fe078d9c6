"""The queue of a study's cells, over Optuna: which cells wait, run or have failed. Any number of workers share it.

A cell that may run is a waiting trial, with the cell's key in its user attributes. Every worker may add one: of two
trials of one cell the first one counts, and the other is skipped when its turn comes. The run folder tells whether a
cell is done, not the queue.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple

import optuna
from optuna.exceptions import ExperimentalWarning, OptunaError, UpdateFinishedTrialError
from optuna.storages import RetryHeartbeatStaleTrialCallback, fail_stale_trials
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from pskd.errors import PskdError
from pskd.metrics.catalogue import METRICS, primary
from pskd.workbench.study import storage
from pskd.workbench.study.cells import Cell, Study

RETRIES = 5  # of a cell whose worker died: a cell that kills every worker must come to an end
LIVE = (TrialState.WAITING, TrialState.RUNNING)

optuna.logging.set_verbosity(optuna.logging.ERROR)


class State(StrEnum):
    DONE = "done"
    RUNNING = "running"
    WAITING = "waiting"
    NOT_READY = "not ready"  # a cell that it needs is not done
    FAILED = "failed"
    BLOCKED = "blocked"  # a cell that it needs has failed or was pruned
    PRUNED = "pruned"  # given up, because others were better


STATES = {TrialState.COMPLETE: State.DONE, TrialState.PRUNED: State.PRUNED, TrialState.RUNNING: State.RUNNING}
AfterEpoch = Callable[[Mapping[str, Any]], None]
OPEN = (State.RUNNING, State.WAITING, State.NOT_READY)


class Standing(NamedTuple):
    """The state of a cell, its error, and the seconds that it took or has been running."""

    state: State
    error: str | None = None
    seconds: float | None = None


class CellReturned(KeyboardInterrupt):
    """The worker was asked to stop, and its cell waits again. Not an Exception, which a training may catch."""


@contextlib.contextmanager
def _no_warnings() -> Iterator[None]:
    """Optuna warns at each use of its heartbeats that they are experimental."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        yield


class Queue:
    """The queue of one study.

    Args:
        study: the study.
        url: Optuna's URL of a database; None is a SQLite file in the study's folder.
        heartbeat: seconds between two heartbeats of a running cell.
        grace: seconds without a heartbeat after which a worker counts as dead.
        patience: seconds to wait for a database that is away.
        waits: whether to wait for it at the beginning, too.
        say: prints a line about a damaged or absent database.
    """

    @_no_warnings()
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
        self.study, self.cells, self.grace = study, study.cells(), grace

        def connect() -> None:
            self.storage = storage.PatientStorage(
                address,
                patience=patience,
                heartbeat_interval=heartbeat,
                grace_period=grace,
                heartbeat_stale_trial_callback=_retry,
            )
            epochs = max(cell.config.train.epochs for cell in self.cells.values())
            self.trials = optuna.create_study(
                storage=self.storage,
                study_name=study.identity,
                sampler=optuna.samplers.RandomSampler(),
                pruner=optuna.pruners.MedianPruner(n_warmup_steps=epochs // 3),
                load_if_exists=True,
            )

        with storage.own_database(study.folder, say) if url is None else contextlib.nullcontext(url) as address:
            scheme, _, rest = address.partition("://")
            name = f"{scheme}://{rest.rpartition('@')[2]}"  # without a password
            try:
                storage.repeat(connect, patience if waits else 0.0, say)
            except ImportError as error:
                text = f"{name}: its database driver is not installed ({error.__cause__ or error})"
                raise PskdError(text) from None
            except (SQLAlchemyError, OptunaError, RuntimeError, ValueError) as error:
                raise PskdError(f"the queue {name} cannot be opened: {storage.reason(error)}") from None

    @_no_warnings()
    def standings(self) -> dict[str, Standing]:
        """The standing of every cell."""
        trials = self._newest_trials()
        standings: dict[str, Standing] = {}
        for key, cell in self.cells.items():
            own = self._standing(key, trials.get(key))
            if own is None:
                states = {standings[need].state for need in cell.needs}
                if not states.isdisjoint({State.FAILED, State.BLOCKED, State.PRUNED}):
                    own = Standing(State.BLOCKED)
                else:
                    own = Standing(State.WAITING if states <= {State.DONE} else State.NOT_READY)
            standings[key] = own
        return standings

    @_no_warnings()
    def advance(self) -> dict[str, Standing]:
        """Add every cell that may run and is not in the queue; return where each cell stands.

        While a cell of one seed is not ready, cells of later seeds are added only if nothing else waits.
        """
        fail_stale_trials(self.trials)
        self._fail_never_begun()
        standings, trials = self.standings(), self._newest_trials()
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
        """Add cells again that failed, or that are done but have lost their run folder."""
        for key, standing in self.standings().items():
            if standing.state is State.FAILED or (standing.state is State.DONE and not self._is_done(key)):
                self._enqueue(key)

    def take(self, train: Callable[[Cell, AfterEpoch], float]) -> None:
        """Train the next waiting cell, if there is still one.

        ``train`` passes the record of every epoch to its second argument. What it raises becomes the cell's error;
        after ``CellReturned`` the cell waits again.
        """

        def run_trial(trial: Trial) -> float:
            key = trial.user_attrs.get("cell")
            if key not in self.cells or self._is_done(key) or self._is_taken(key, trial.number):
                raise optuna.TrialPruned
            try:
                value = train(self.cells[key], lambda record: self._prune(trial, record))
            except (Exception, CellReturned) as error:
                name = {optuna.TrialPruned: "pruned", CellReturned: "stopped"}.get(type(error), "error")
                with contextlib.suppress(UpdateFinishedTrialError):
                    trial.set_user_attr(name, _first_line(error))
                raise
            return value if math.isfinite(value) else 0.0

        try:
            self.trials.optimize(run_trial, n_trials=1, catch=(Exception,))
        except CellReturned:
            pass
        except Exception as error:  # not of the cell, whose errors are caught
            for each in (error, error.__context__):  # Optuna hides the first error behind one of its own
                if isinstance(each, PskdError):
                    raise each from None
            # This worker was taken for dead, so Optuna refuses its result. The run folder has it.
            if not isinstance(error, ValueError | AssertionError | UpdateFinishedTrialError):
                raise

    @property
    def stops(self) -> int:
        """How often this study was asked to stop. A worker leaves when the number grows."""
        return int(self.trials.user_attrs.get("stops", 0))

    def stop(self) -> None:
        self.trials.set_user_attr("stops", self.stops + 1)

    def _prune(self, trial: Trial, record: Mapping[str, Any]) -> None:
        if self.study.file.prune and "val" in record:
            name = primary(record["val"])
            if name is None:
                raise PskdError("prune: these runs have no primary metric to be compared by; leave prune out")
            # A training does not wait for a database that is away: the next epoch is compared again.
            with contextlib.suppress(UpdateFinishedTrialError, *storage.DATABASE_ERRORS), storage.call_once():
                trial.report(METRICS[name].cost(float(record["val"][name])), record["epoch"])
                if trial.should_prune():
                    raise optuna.TrialPruned

    def _standing(self, key: str, newest: FrozenTrial | None) -> Standing | None:
        """The standing that run folder and newest trial give; None for a cell that has yet to run."""
        state, notes = (None, {}) if newest is None else (newest.state, newest.user_attrs)
        seconds = None if newest is None else _seconds(newest)
        if self._is_done(key):
            return Standing(State.DONE, seconds=seconds)
        if state in STATES:
            return Standing(STATES[state], seconds=seconds)
        if newest is not None and state is TrialState.FAIL and "stopped" not in notes:
            if "error" in notes:
                return Standing(State.FAILED, notes["error"])
            if len(RetryHeartbeatStaleTrialCallback.retry_history(newest)) >= RETRIES:
                return Standing(State.FAILED, f"its worker died {RETRIES + 1} times (out of memory?)")
        return None

    def _newest_trials(self) -> dict[str, FrozenTrial]:
        """The last trial of every cell that was not skipped."""
        newest: dict[str, FrozenTrial] = {}
        for trial in self.trials.get_trials(deepcopy=False):
            skipped = trial.state is TrialState.PRUNED and "pruned" not in trial.user_attrs
            if "cell" in trial.user_attrs and not skipped:
                newest[trial.user_attrs["cell"]] = trial
        return newest

    def _is_taken(self, key: str, number: int) -> bool:
        live = self.trials.get_trials(deepcopy=False, states=LIVE)
        return any(trial.user_attrs.get("cell") == key and trial.number < number for trial in live)

    def _fail_never_begun(self) -> None:
        """Fail trials whose worker died before its first heartbeat: Optuna never finds them stale."""
        limit = datetime.now() - timedelta(seconds=self.grace)
        for trial in self.trials.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if "begun" not in trial.user_attrs and trial.datetime_start is not None and trial.datetime_start < limit:
                self.trials.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)

    def _is_done(self, key: str) -> bool:
        return (self.study.run_folder(key) / "result.json").is_file()

    def _enqueue(self, key: str) -> None:
        self.trials.enqueue_trial({}, user_attrs={"cell": key})


@_no_warnings()
def _retry(study: optuna.Study, trial: FrozenTrial) -> None:
    """Add the trial of a dead worker again, with its cell but without what else was noted of it."""
    trial.user_attrs = {name: value for name, value in trial.user_attrs.items() if name == "cell"}
    RetryHeartbeatStaleTrialCallback(max_retry=RETRIES)(study, trial)


def time_left(standings: Mapping[str, Standing], workers: int) -> float | None:
    """Seconds until all cells are done if the others take as long as those before; None if no cell is done."""
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


def _seconds(trial: FrozenTrial) -> float | None:
    if trial.datetime_start is None:
        return None
    end = trial.datetime_complete or datetime.now()
    return max(0.0, (end - trial.datetime_start).total_seconds())  # another machine's clock may be ahead


def _first_line(error: BaseException) -> str:
    text = (str(error).strip().splitlines() or [""])[0]
    return (text if isinstance(error, PskdError) else f"{type(error).__name__}: {text}")[:500]
