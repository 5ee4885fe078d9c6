"""The database of a queue: calls are repeated while it is away, and a damaged SQLite file is replaced."""

from __future__ import annotations

import contextlib
import fcntl
import inspect
import os
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from optuna.exceptions import OptunaError, StorageInternalError
from optuna.storages import RDBStorage
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, PendingRollbackError, SQLAlchemyError

from pskd.errors import PskdError, single_line
from pskd.workbench.runs.files import link_error, make_own

PATIENCE = 600.0  # seconds that a database may be away
SHORTEST, LONGEST = 0.1, 10.0  # seconds between two attempts
DATABASE_ERRORS = (StorageInternalError, SQLAlchemyError)
_SQLITE_TEMPORARY = ("locked", "readonly", "unable to open", "disk i/o", "disk is full")
_TABLES = ("studies", "trials", "trial_user_attributes", "version_info")
_thread = threading.local()

Result = TypeVar("Result")


class DatabaseUnreachable(PskdError):
    """The database was away for longer than the queue waits."""


class PatientStorage(RDBStorage):
    """Optuna's storage. Every call is repeated while the database is away, for ``patience`` seconds."""

    def __init__(self, url: str, *, patience: float = PATIENCE, **options: Any) -> None:
        self.patience = patience
        if sqlite := url.startswith("sqlite"):
            engine: dict[str, Any] = {"connect_args": {"timeout": 120, "isolation_level": None}}
        else:
            engine = {"pool_pre_ping": True}
        super().__init__(url, engine_kwargs=engine, **options)
        if sqlite:
            # SQLite locks its file at the first write of a transaction, and Optuna reads first: two workers could read
            # that a trial is waiting, and both take it.
            event.listen(self.engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if not inspect.ismethod(value):
            return value
        return lambda *arguments, **options: repeat(lambda: value(*arguments, **options), self.patience)

    def record_heartbeat(self, trial_id: int) -> None:
        """Record a heartbeat, and that the trial has begun. A lost one does not matter: the next one follows."""
        with contextlib.suppress(OptunaError, SQLAlchemyError):
            super().record_heartbeat(trial_id)
            if "begun" not in self.get_trial(trial_id).user_attrs:
                self.set_trial_user_attr(trial_id, "begun", True)


@contextlib.contextmanager
def call_once() -> Iterator[None]:
    """In this thread, calls are not repeated: one of ``DATABASE_ERRORS`` is raised at once."""
    before, _thread.once = getattr(_thread, "once", False), True
    try:
        yield
    finally:
        _thread.once = before


def repeat(call: Callable[[], Result], patience: float, say: Callable[[str], None] = lambda line: None) -> Result:
    """Return what ``call`` returns. While the database is away, call again, less and less often, for ``patience`` s."""
    if getattr(_thread, "once", False):  # also a part of a call that is repeated as a whole
        return call()
    begun, pause = time.monotonic(), SHORTEST
    while True:
        try:
            with call_once():
                return call()
        except DATABASE_ERRORS as error:
            if not is_temporary(error):
                raise
            if time.monotonic() - begun > patience:
                text = f"the queue is away ({reason(error)}): run the command again when it is back"
                raise DatabaseUnreachable(text) from error
            if pause == SHORTEST:
                say(f"the queue is away ({reason(error)}): trying again for {patience / 60:g} minutes")
        time.sleep(pause)
        pause = min(LONGEST, 1.5 * pause)


def is_temporary(error: BaseException) -> bool:
    """Whether the database is only away, busy or read-only for now."""
    cause = error.__cause__ if isinstance(error, StorageInternalError) else error
    if isinstance(cause, PendingRollbackError):
        return True  # the connection was lost during a call
    if not isinstance(cause, DBAPIError):
        return False
    if "sqlite" in type(cause.orig).__module__:
        return any(sign in str(cause.orig).lower() for sign in _SQLITE_TEMPORARY)
    return cause.connection_invalidated or isinstance(cause, OperationalError | InterfaceError)


def reason(error: BaseException) -> str:
    """The message of the database's own driver, in one line."""
    while error.__cause__ is not None and not isinstance(error, DBAPIError):
        error = error.__cause__
    return single_line(getattr(error, "orig", None) or error)


@contextlib.contextmanager
def own_database(folder: Path, say: Callable[[str], None]) -> Iterator[str]:
    """The URL of a study's SQLite file. A damaged file is moved aside: the run folders tell which cells are done.

    One process at a time is in this context, or a second one would move away what the first one is just creating.
    """
    file = folder / "queue.db"
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # NFS cannot lock a folder
            fcntl.flock(handle, fcntl.LOCK_EX)
        if file.is_symlink():
            raise link_error(file)
        if file.exists() and not stat.S_ISREG(file.stat().st_mode):
            raise PskdError(f"{file} is no ordinary file: remove it")
        make_own(file)
        if file.exists() and (damage := _find_damage(file)):
            aside = next(place for n in range(1, 10**6) if not (place := folder / f"queue.damaged-{n}.db").exists())
            file.replace(aside)
            for rest in ("-journal", "-wal", "-shm"):
                file.with_name(file.name + rest).unlink(missing_ok=True)
            say(f"{file} is damaged ({damage}): moved to {aside.name}, and made again from the run folders")
        yield f"sqlite:///{file}"
    finally:
        os.close(handle)


def _find_damage(file: Path) -> str:
    """What is wrong with Optuna's SQLite file; empty if nothing is, or if it cannot be read for now."""
    if not file.stat().st_size:
        return ""  # it is just being created
    try:
        address = f"{file.absolute().as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(address, uri=True, timeout=120)) as database:
            (answer,) = database.execute("PRAGMA quick_check").fetchone()
            for table in _TABLES:  # the check does not read text
                database.execute(f"SELECT * FROM {table}").fetchall()
    except sqlite3.Error as error:
        return "" if any(sign in str(error).lower() for sign in _SQLITE_TEMPORARY) else str(error)
    except (UnicodeError, OverflowError) as error:
        return str(error)
    return "" if answer == "ok" else single_line(answer)
