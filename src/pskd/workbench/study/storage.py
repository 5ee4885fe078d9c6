"""The database of a queue: one that is away for a while is waited for, a file that is damaged is made anew."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import inspect
import os
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, PendingRollbackError, SQLAlchemyError

from pskd.errors import PskdError, single_line
from pskd.workbench.runs.files import link_error, make_own

PATIENCE = 600.0  # seconds that a database may be away
SHORTEST, LONGEST = 0.1, 10.0  # seconds between two attempts
_SQLITE_FOR_NOW = ("locked", "readonly", "unable to open", "disk i/o", "disk is full")  # what may pass, of a file
_thread = threading.local()


class DatabaseUnreachable(PskdError):
    """The queue's database has been away for longer than one waits for it."""


class PatientStorage(RDBStorage):
    """Optuna's storage, of which every call is repeated while the database cannot be reached.

    Args:
        url: Optuna's name of the database.
        patience: seconds to wait for it; what is done meanwhile in other threads, such as a training, goes on.
    """

    def __init__(self, url: str, *, patience: float = PATIENCE, **options: Any) -> None:
        self.patience = patience
        super().__init__(
            url,
            engine_kwargs={"connect_args": {"timeout": 120}} if url.startswith("sqlite") else {"pool_pre_ping": True},
            **options,
        )
        if self.engine.name == "sqlite":
            _serialize(self.engine)


def _patient(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def repeated(self: PatientStorage, *arguments: Any, **options: Any) -> Any:
        if getattr(_thread, "inside", False):  # a step of a call that is repeated as a whole
            return call(self, *arguments, **options)
        _thread.inside = True
        try:
            return waited(lambda: call(self, *arguments, **options), self.patience)
        finally:
            _thread.inside = False

    return repeated


for _name, _call in vars(RDBStorage).items():
    # Those with a session are steps of a transaction, which is repeated as a whole.
    if (
        inspect.isfunction(_call)
        and not _name.startswith("__")
        and "session" not in inspect.signature(_call).parameters
    ):
        setattr(PatientStorage, _name, _patient(_call))


@contextlib.contextmanager
def impatient() -> Iterator[None]:
    """In this thread, a database that is away is an error at once."""
    before, _thread.impatient = getattr(_thread, "impatient", False), True
    try:
        yield
    finally:
        _thread.impatient = before


def waited(call: Callable[[], Any], patience: float, say: Callable[[str], None] = lambda line: None) -> Any:
    """The call's result; where the database is away it is repeated, ever less often, for so many seconds."""
    begun, pause = time.monotonic(), SHORTEST
    while True:
        try:
            return call()
        except (StorageInternalError, SQLAlchemyError) as error:
            if not may_pass(error):
                raise
            if getattr(_thread, "impatient", False) or time.monotonic() - begun > patience:
                raise DatabaseUnreachable(
                    f"the queue is away ({reason(error)}): run the command again when it is back"
                ) from error
            if pause == SHORTEST:
                say(f"the queue is away ({reason(error)}): trying again for {patience / 60:g} minutes")
        time.sleep(pause)
        pause = min(LONGEST, 1.5 * pause)


def may_pass(error: BaseException) -> bool:
    """Whether the database is only away, busy or not writable for now."""
    cause = error.__cause__ if isinstance(error, StorageInternalError) else error
    if isinstance(cause, PendingRollbackError):
        return True  # the connection was lost in the middle of a call
    if not isinstance(cause, DBAPIError):
        return False
    if "sqlite" in type(cause.orig).__module__:
        return any(sign in str(cause.orig).lower() for sign in _SQLITE_FOR_NOW)
    return cause.connection_invalidated or isinstance(cause, OperationalError | InterfaceError)


def reason(error: BaseException) -> str:
    """What the database's own driver said, in one line."""
    cause: Any = error.__cause__ or error
    return single_line(getattr(cause, "orig", None) or cause)


def own_file(folder: Path, say: Callable[[str], None]) -> str:
    """The URL of the SQLite file of a study; a damaged one is moved aside: run folders say what is done."""
    file = folder / "queue.db"
    if file.is_symlink():
        raise link_error(file)
    if file.exists() and not stat.S_ISREG(file.stat().st_mode):
        raise PskdError(f"{file} is no ordinary file: remove it")
    make_own(file)
    if file.exists() and (wrong := _damage(file)):
        aside = next(place for n in range(1, 10**6) if not (place := folder / f"queue.damaged-{n}.db").exists())
        file.replace(aside)
        for rest in ("-journal", "-wal", "-shm"):
            file.with_name(file.name + rest).unlink(missing_ok=True)
        say(f"{file} is damaged ({wrong}): moved to {aside.name} and made anew from the run folders")
    return f"sqlite:///{file}"


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """One worker at a time opens a study's file, or a second one would move away what the first is just making."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # NFS cannot
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _damage(file: Path) -> str:
    """What is wrong with a SQLite file of Optuna's; nothing if all is well, or cannot be told now."""
    if not file.stat().st_size:
        return ""  # just being made
    try:
        with contextlib.closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, timeout=120)) as found:
            answer = found.execute("PRAGMA quick_check").fetchone()[0]
            tables = {name for (name,) in found.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            for table in ("trials", "studies", "trial_user_attributes", "version_info"):
                if table in tables:
                    found.execute(f"SELECT * FROM {table}").fetchall()
    except sqlite3.Error as error:
        return "" if any(sign in str(error).lower() for sign in _SQLITE_FOR_NOW) else str(error)
    except (UnicodeError, OverflowError) as error:
        return str(error)
    if answer != "ok":
        return single_line(answer)
    return "" if {"trials", "studies"} <= tables else "it is no queue"


def _serialize(engine: Any) -> None:
    """Let a SQLite transaction lock the file from its first statement on.

    By default it locks at its first write, so two workers can both read that a trial is waiting, and both take it.
    """

    @event.listens_for(engine, "connect")
    def leave_transactions_to_us(connection: Any, _record: Any) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def lock(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    engine.dispose()  # connections opened before know nothing of this
