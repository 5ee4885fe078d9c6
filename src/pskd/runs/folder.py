"""A run folder: everything that a run leaves behind, and all that a report needs.

config.yaml  metrics.jsonl  history.bin  result.json  model.safetensors  checkpoints/  predictions.npz  log.txt
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from pathlib import Path
from typing import Any

from pskd import config as configuration
from pskd.config import Config
from pskd.errors import PskdError
from pskd.runs.files import one_line_errors, write_atomic


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
        self._lock: int | None = None

    def claim(self, config: Config | None, *, resume: bool, allow_code: bool = False) -> Config:
        """Take the folder for writing; returns the configuration to run, by default the stored one when resuming."""
        if resume and config is None and not self.config_file.exists():
            raise PskdError(f"{self.path} has no config.yaml to resume from: name the recipe too, or check --out")
        with one_line_errors("run folder"):
            self.path.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # not inherited by loader processes
        except (BlockingIOError, PermissionError):
            os.close(lock)
            raise InUse(f"{self.path} is in use by another process: wait for it, or choose another --out") from None
        self._lock = lock
        try:
            return self._configuration(config, resume, allow_code)
        except BaseException:
            self.release()
            raise

    def _configuration(self, config: Config | None, resume: bool, allow_code: bool) -> Config:
        """The configuration to run: the stored one, or the one given if it says the same."""
        stored = self.config(allow_code=allow_code) if self.config_file.exists() else None
        if stored is not None and not resume:
            raise PskdError(f"{self.path} already holds a run: add --resume to continue it, or choose another --out")
        if stored is not None and config is not None:
            places = configuration.places(config)
            differences = configuration.differences(stored, config)
            if changed := [line for line in differences if line.partition(":")[0] not in places]:
                raise PskdError(
                    f"{self.path} belongs to another configuration ({changed[0]} here"
                    + (f", and {len(changed) - 1} more" if changed[1:] else "")
                    + "): leave the settings out to resume it, or choose another --out"
                )
        wanted = config or stored
        assert wanted is not None
        return wanted

    def begin(self, config: Config) -> None:
        """Everything is ready to train: from here on the folder holds this run."""
        if not self.config_file.exists() or self.config_file.read_text() != config.to_yaml():
            write_atomic(self.config_file, config.to_yaml())

    def release(self) -> None:
        """Let go of the folder; one in which nothing has begun is removed."""
        if self._lock is None:
            return
        if not self.config_file.exists():
            (self.path / ".lock").unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # it was there before, with something in it
                self.path.rmdir()
        os.close(self._lock)
        self._lock = None

    def config(self, *, allow_code: bool = False) -> Config:
        """The run's configuration. Code that it names is imported only if that is allowed."""
        if not self.config_file.is_file():
            raise PskdError(f"{self.path} is not a run folder: it has no config.yaml")
        try:
            return configuration.validated(configuration.read_yaml(self.config_file), allow_code=allow_code)
        except PskdError as error:
            raise PskdError(f"{self.config_file}: {error}") from None

    def result(self) -> dict[str, Any]:
        """What the finished run came to."""
        if not self.result_file.is_file():
            raise PskdError(f"{self.path} is not finished: it has no result.json (continue it with --resume)")
        try:
            return dict(json.loads(self.result_file.read_text()))
        except (ValueError, TypeError, RecursionError):
            raise PskdError(f"{self.result_file} is damaged: remove it and continue the run with --resume") from None

    def append_metrics(self, record: dict[str, Any]) -> None:
        with self.metrics_file.open("a") as file:
            file.write(json.dumps(record) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """The records so far; a last line that was torn by a crash is left out."""
        records = []
        if self.metrics_file.exists():
            for line in self.metrics_file.read_text().splitlines():
                try:
                    records.append({**json.loads(line)})
                except (ValueError, TypeError, RecursionError):
                    break
        return records

    def keep_metrics(self, epochs: int) -> None:
        """Drop the records of epochs past the first ``epochs``: a resumed run will write them again."""
        kept = [record for record in self.metrics() if record.get("epoch", epochs + 1) <= epochs]
        if self.metrics_file.exists():
            write_atomic(self.metrics_file, "".join(json.dumps(record) + "\n" for record in kept))

    def log(self, line: str) -> None:
        with self.log_file.open("a") as file:
            file.write(line + "\n")
