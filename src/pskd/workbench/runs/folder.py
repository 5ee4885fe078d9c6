"""A run folder: everything that a run leaves behind, and all that a report needs.

config.yaml  metrics.jsonl  history.bin  result.json  model.safetensors  checkpoints/  predictions.npz  log.txt
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from pathlib import Path
from typing import Any

from pskd.errors import PskdError
from pskd.workbench import config as configuration
from pskd.workbench.config import Config
from pskd.workbench.config.base import END
from pskd.workbench.reading import parse_json, read_text
from pskd.workbench.runs import schemas
from pskd.workbench.runs.checkpoint import list_steps
from pskd.workbench.runs.files import OF_A_RUN, check_own, one_line_errors, open_own, write_atomic
from pskd.workbench.runs.trust import sandbox

LARGEST_RESULT, LARGEST_METRICS = 2**25, 2**30  # bytes
_locked_folders: set[int] = set()  # their descriptors


def _close_in_child() -> None:
    """A loader process does not hold its parent's folder, which it may outlive for a while."""
    for handle in _locked_folders:
        os.close(handle)
    _locked_folders.clear()


os.register_at_fork(after_in_child=_close_in_child)


class InUse(PskdError):
    """Another process writes to this run folder."""


class RunFolder:
    """One run's folder. A process that writes holds its lock, which ends with the process, however that ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.yaml"
        self.metrics_file = path / "metrics.jsonl"
        self.result_file = path / "result.json"
        self.model_file = path / "model.safetensors"
        self.best_model_file = path / "best.safetensors"
        self.predictions_file = path / "predictions.npz"
        self.history_file = path / "history.bin"
        self.log_file = path / "log.txt"
        self.checkpoints = path / "checkpoints"
        self.notes: dict[str, str] = {}  # on settings of the stored configuration that are left out
        self._locks: list[int] = []
        self._watched: int | None = None  # the lock file must not be deleted where the folder itself cannot be locked
        self._created = False

    def claim(self, config: Config | None, *, resume: bool, allow_code: bool = False) -> Config:
        """Take the folder for writing; returns the configuration to run, by default the stored one when resuming."""
        if resume and config is None:
            self.check_resumable()
        if re.search("[\ud800-\udfff]", str(self.path.absolute())):
            raise PskdError(f"{self.path}: this name is not UTF-8, in which weights could not be saved: choose another")
        try:
            with one_line_errors("run folder", **OF_A_RUN):
                self._created = not self.path.exists()
                self.path.mkdir(parents=True, exist_ok=True)
                self._check_ours()
                self._lock()
            return self._configuration(config, resume, allow_code)
        except BaseException:
            self.release()
            raise

    def check_resumable(self) -> None:
        if not self.config_file.exists():
            raise PskdError(f"{self.path} has no config.yaml to resume from: name the recipe too, or check --out")

    def has_begun(self) -> bool:
        """Whether there is a checkpoint to continue from."""
        return bool(list_steps(self.checkpoints))

    def _check_ours(self) -> None:
        """Refuse a folder that holds something other than a run, or links that lead elsewhere."""
        check_own(self.path)
        if self.checkpoints.is_dir():
            check_own(self.checkpoints)
        if not self.config_file.exists():
            # A run that was killed before it began may have left these, and a tracker's folder of the run's name.
            begun = re.compile(rf"\.lock|\..*\.writing|bank-\d+\.scratch|{re.escape(self.path.absolute().name)}")
            if other := sorted(entry.name for entry in self.path.iterdir() if not begun.fullmatch(entry.name)):
                raise PskdError(
                    f"{self.path} is no run folder and not empty (it holds {other[0]}): choose another --out"
                )

    def _lock(self) -> None:
        """Lock a file and, since a file can be deleted, the folder itself, if its file system can."""
        file = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        self._locks.append(file)
        in_use = InUse(f"{self.path} is in use by another process: wait for it, or choose another --out")
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):  # which of the two depends on the system
            self._unlock()  # the file is the other process's
            raise in_use from None
        except OSError as error:
            raise PskdError(
                f"{self.path}: its file system cannot lock files ({error.strerror}), so a second training could write"
                " here unnoticed: choose an --out on another one, or have it mounted with locks"
            ) from None
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        self._locks.append(folder)
        _locked_folders.add(folder)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._unlock()
            raise in_use from None
        except OSError:
            self._watched = file  # NFS cannot lock folders: the file's lock has to do

    def check_held(self) -> None:
        """Stop if a second training may have begun here, because the only lock was deleted."""
        if self._watched is None:
            return
        try:
            there = os.stat(self.path / ".lock", follow_symlinks=False)
        except FileNotFoundError:
            there = None
        if there is None or not os.path.samestat(there, os.fstat(self._watched)):
            raise InUse(f"the file .lock in {self.path} was removed, another training may write there: see to that one")

    def _unlock(self) -> None:
        for handle in self._locks:
            if handle in _locked_folders:
                with contextlib.suppress(OSError):
                    fcntl.flock(handle, fcntl.LOCK_UN)  # also for a child that has just been forked
            _locked_folders.discard(handle)
            os.close(handle)
        self._locks, self._watched = [], None

    def _configuration(self, config: Config | None, resume: bool, allow_code: bool) -> Config:
        """The configuration to run: the stored one, or the given one if it has the same settings."""
        if not self.config_file.exists():
            assert config is not None
            return config
        stored = self.config(allow_code=allow_code)
        if not resume:
            raise PskdError(f"{self.path} already holds a run: add --resume to continue it, or choose another --out")
        if config is None:
            return stored
        places = configuration.places(config)
        differences = configuration.differences(stored, config)
        if changed := [line for line in differences if line.partition(":")[0] not in places]:
            raise PskdError(
                f"{self.path} belongs to another configuration ({changed[0]} here"
                + (f", and {len(changed) - 1} more" if changed[1:] else "")
                + "): leave the settings out to resume it, or choose another --out"
            )
        return config

    def begin(self, config: Config) -> None:
        """Everything is ready to train: from here on the folder holds this run."""
        if not self.config_file.exists() or self.config_file.read_text() != config.to_yaml():
            write_atomic(self.config_file, config.to_yaml())

    def release(self) -> None:
        """Unlock the folder; if nothing has begun in it, remove it."""
        if not self._locks:
            return
        if not self.config_file.exists():
            (self.path / ".lock").unlink(missing_ok=True)
            if self._created:
                with contextlib.suppress(OSError):  # a tracker has left something in it
                    self.path.rmdir()
        self._unlock()

    def config(self, *, allow_code: bool = False) -> Config:
        """The run's configuration. Code that it names is imported only if that is allowed."""
        if not self.config_file.is_file():
            raise PskdError(f"{self.path} is not a run folder: it has no config.yaml")
        try:
            tree = configuration.read_yaml(self.config_file)
            config = configuration.validated(tree, allow_code=allow_code)
            self._check_whole(config, tree)
        except PskdError as error:
            raise PskdError(f"{self.config_file}: {error}") from None
        config, self.notes = sandbox(config, allow_code=allow_code)
        return config

    def _check_whole(self, config: Config, tree: dict[str, Any]) -> None:
        """Refuse a file that was cut off, since defaults would stand in for what is missing.

        A file of an earlier version may lack new settings and the last line.
        """
        whole = configuration.flat(config.model_dump(mode="json"))
        lacks = {key.partition(".")[0] for key in whole if "." in key} - tree.keys()
        ended = read_text(self.config_file, 2**20).endswith(END) or list(whole)[-1] in configuration.flat(tree)
        if lacks or not ended:
            what = f"its section {min(lacks)} is missing" if lacks else "its end is missing"
            raise PskdError(f"the file is cut off ({what}): restore the whole file")

    def result(self) -> dict[str, Any]:
        """What result.json holds."""
        if not self.result_file.is_file():
            raise PskdError(f"{self.path} is not finished: it has no result.json (continue it with --resume)")
        advice = "remove it and continue the run with --resume"
        return dict(schemas.read(schemas.Result, self.result_file, LARGEST_RESULT, advice)[0])

    def append_metrics(self, record: dict[str, Any]) -> None:
        with open_own(self.metrics_file, "a") as file:
            file.write(json.dumps(record) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """The records so far. A crash may have cut off the last line, which is then left out."""
        if not self.metrics_file.exists():
            return []
        lines = read_text(self.metrics_file, LARGEST_METRICS).splitlines()
        records: list[dict[str, Any]] = []
        advice = "restore the file, or remove it from this line on"
        for number, line in enumerate(lines, 1):
            where = f"{self.metrics_file}, line {number},"
            try:
                record = parse_json(line, where)
            except PskdError:
                if number == len(lines):
                    break
                raise PskdError(f"{where} is damaged: {advice}") from None
            schemas.validate(schemas.Epoch, record, where, advice)
            records.append(record)
        return records

    def keep_metrics(self, epochs: int) -> None:
        """Drop the records after the first ``epochs``: a resumed run will write them again."""
        kept = [record for record in self.metrics() if record["epoch"] <= epochs]
        if self.metrics_file.exists():
            write_atomic(self.metrics_file, "".join(json.dumps(record) + "\n" for record in kept))

    def log(self, line: str) -> None:
        with open_own(self.log_file, "a") as file:
            file.write(line + "\n")
