"""Checkpoints: written beside and renamed into place, with a checksum for every byte.

A checkpoint is a folder named after the optimizer steps that were done, with one file per part and a manifest. Files
hold tensors, numbers and strings only, and are read with ``weights_only=True``: no code runs from a checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from pskd.engine.files import to_disk, write_json
from pskd.errors import PskdError

_MANIFEST = "manifest.json"
_WRITING = ".writing-"


class Checkpoints:
    """The checkpoints of one run, newest last.

    ``barrier`` makes the processes of a run wait for each other: each writes its own parts, the leader completes.
    """

    def __init__(
        self, folder: Path, keep_last: int, *, leader: bool = True, barrier: Callable[[], None] = lambda: None
    ):
        self.folder, self.keep_last, self.leader, self.barrier = folder, keep_last, leader, barrier

    def save(self, step: int, parts: Mapping[str, Any]) -> Path:
        """Write this process's parts of the checkpoint of ``step``; it counts once all are on disk."""
        writing, final = self.folder / f"{_WRITING}{step:09d}", self.folder / f"{step:09d}"
        if self.leader:
            self.folder.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(writing, ignore_errors=True)
            writing.mkdir()
        self.barrier()
        try:
            for name, part in parts.items():
                _write(part, writing / f"{name}.pt")
            self.barrier()
            if self.leader:
                files = {file.name: _checksum(file) for file in sorted(writing.iterdir())}
                write_json(writing / _MANIFEST, {"step": step, "files": files})
                shutil.rmtree(final, ignore_errors=True)
                writing.rename(final)
                to_disk(self.folder)
        except BaseException:
            shutil.rmtree(writing, ignore_errors=True)
            raise
        if self.leader:
            for old in self.steps()[: -self.keep_last]:
                shutil.rmtree(self.folder / f"{old:09d}", ignore_errors=True)
        self.barrier()
        return final

    def steps(self) -> list[int]:
        """The steps of all complete checkpoints, oldest first."""
        return sorted(int(child.name) for child in self.folder.glob("[0-9]" * 9) if (child / _MANIFEST).is_file())

    def newest(self, report: Callable[[str], None]) -> Path | None:
        """The newest checkpoint whose every byte is as it was written; a damaged one is reported and passed over."""
        for step in reversed(self.steps()):
            folder = self.folder / f"{step:09d}"
            if (damage := _damage(folder)) is None:
                return folder
            report(f"checkpoint {folder} is damaged ({damage}); using the one before")
        return None

    def clean(self) -> None:
        """Remove what a killed process left half-written."""
        for child in self.folder.glob(f"{_WRITING}*"):
            shutil.rmtree(child, ignore_errors=True)


def _write(part: Any, path: Path) -> None:
    try:
        with path.open("wb") as file:
            torch.save(part, file)
            file.flush()
            os.fsync(file.fileno())
    except (OSError, RuntimeError) as error:
        # When the disk is full, torch's writer fails once more while it closes.
        cause = error if isinstance(error, OSError) else error.__context__
        if isinstance(cause, OSError):
            cause.filename = str(path)
            raise cause from None
        raise


def load(folder: Path, name: str) -> Any:
    """One part of a checkpoint, on the CPU."""
    try:
        return torch.load(folder / f"{name}.pt", map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, pickle.UnpicklingError) as error:
        raise PskdError(f"{folder / name}.pt cannot be read ({str(error).splitlines()[0]}): remove {folder}") from error


def _damage(folder: Path) -> str | None:
    try:
        files = json.loads((folder / _MANIFEST).read_text())["files"]
        for name, checksum in files.items():
            if Path(name).name != name or _checksum(folder / name) != checksum:
                return f"{name} was changed"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return str(error) or type(error).__name__
    return None


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
