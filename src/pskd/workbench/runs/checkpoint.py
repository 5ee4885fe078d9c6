"""Checkpoints: written beside and renamed into place, with a checksum of every file.

A checkpoint is a folder with one file for each part and a manifest; its name is the number of optimizer steps done.
The files hold tensors, numbers and strings only and are read with ``weights_only=True``: no code runs from them.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from pskd.errors import PskdError
from pskd.workbench.reading import check_file
from pskd.workbench.runs import schemas
from pskd.workbench.runs.files import checksum, to_disk, write_json
from pskd.workbench.runs.group import Group

_MANIFEST = "manifest.json"
_WRITING = ".writing-"
_SUMS = "checksums-"
_BEGUN = ".checkpointed"  # this file beside the folder says that a checkpoint was once complete
_START_AGAIN = "or start again with another --out (or in this one, if you remove the folder checkpoints yourself)"
_GO_ON = "go on from the last checkpoint with --resume"


def list_steps(folder: Path) -> list[int]:
    """The steps of the checkpoints in a folder, oldest first; damaged ones are among them."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise PskdError(f"{folder} cannot be read ({error.strerror}): make it readable, {_START_AGAIN}") from None
    return sorted(int(name) for name in names if re.fullmatch(r"[0-9]{9}", name))


class Checkpoints:
    """The checkpoints of one run.

    Each process of the run writes its own parts and verifies a share of the files; the leader writes the manifest.
    """

    def __init__(self, folder: Path, keep_last: int, group: Group | None = None) -> None:
        self.folder, self.keep_last, self.group = folder, keep_last, group or Group()

    def save(self, step: int, parts: Mapping[str, Any], files: Mapping[Path, str] | None = None) -> Path:
        """Write this process's parts of the checkpoint of ``step``; it counts once all are on disk.

        It also gets copies of ``files``, each of which must have the given checksum.
        """
        writing, final = self.folder / f"{_WRITING}{step:09d}", self.folder / f"{step:09d}"
        leader, barrier = self.group.leader, self.group.barrier
        if leader:
            self.folder.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(writing, ignore_errors=True)
            writing.mkdir()
        barrier()
        try:
            # Each process writes the checksums of its own files: no byte is read back or sent to the leader.
            sums = {f"{name}.pt": _write(part, writing / f"{name}.pt") for name, part in parts.items()}
            for file, known in (files or {}).items():
                sums[file.name] = copy_file(file, writing / file.name, known)
            write_json(writing / f"{_SUMS}{self.group.rank}", sums)
            barrier()
            if leader:
                all_sums: dict[str, str] = {}
                for own in sorted(writing.glob(f"{_SUMS}*")):
                    all_sums |= json.loads(own.read_text())
                    own.unlink()
                sizes = {name: (writing / name).stat().st_size for name in all_sums}
                write_json(writing / _MANIFEST, {"step": step, "files": all_sums, "sizes": sizes})
                self._remove(final)
                writing.rename(final)
                self.folder.with_name(_BEGUN).touch()
                to_disk(self.folder)
        except BaseException:
            shutil.rmtree(writing, ignore_errors=True)
            raise
        if leader:
            for old in self.steps()[: -self.keep_last]:
                self._remove(self.folder / f"{old:09d}")
        barrier()
        return final

    def _remove(self, folder: Path) -> None:
        """Remove a checkpoint. It is renamed first: after a crash half of it must not look like a damaged one."""
        if folder.exists():
            gone = folder.with_name(f"{_WRITING}over-{folder.name}")
            shutil.rmtree(gone, ignore_errors=True)
            folder.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)

    def steps(self) -> list[int]:
        """The steps of all checkpoints, oldest first."""
        return list_steps(self.folder)

    def last_good(self) -> str:
        """A sentence about the last checkpoint."""
        steps = self.steps()
        return f"the last checkpoint is {self.folder / f'{steps[-1]:09d}'}" if steps else "none is saved"

    def newest(self, report: Callable[[str], None]) -> Path | None:
        """The newest checkpoint that is not damaged, or None if none was ever saved; damaged ones are reported.

        If all are damaged or gone, it is an error: starting again would destroy what is left of the run.
        """
        steps, damaged = self.steps(), ""
        begun = self.folder.with_name(_BEGUN)
        if self.group.leader and not self.folder.exists():
            begun.unlink(missing_ok=True)  # the user has removed the folder, to start again
        if self.group.maximum(int(self.group.leader and not steps and begun.exists())):
            raise PskdError(f"the checkpoints in {self.folder} are gone: restore one, {_START_AGAIN}")
        while True:
            # The leader's list counts: another host may see the folder a little later.
            step = self.group.maximum(steps.pop() if self.group.leader and steps else -1)
            if step < 0 and damaged:
                raise PskdError(f"{damaged}, and there is no other: restore one, {_START_AGAIN}")
            if step < 0:
                return None
            if damaged:
                report(f"{damaged}; using the one before")
            folder = self.folder / f"{step:09d}"
            changed = self._changed_file(folder)
            if changed is None:
                return folder
            damaged = f"checkpoint {folder} is damaged ({changed} was changed)"

    def _changed_file(self, folder: Path) -> str | None:
        """A file that is not as it was written, None if all are. Each process verifies its share of the files."""
        names, bad = [_MANIFEST], -1
        try:
            manifest = schemas.read(schemas.Manifest, folder / _MANIFEST, 2**25, "")[1]
            names += manifest.files
            for position in range(1 + self.group.rank, len(names), self.group.world):
                name = names[position]
                size = manifest.sizes.get(name)  # compared first: the checksum of an endless file takes for ever
                same = Path(name).name == name and size in (None, (folder / name).stat().st_size)
                if not same or checksum(folder / name) != manifest.files[name]:
                    bad = position
        except (OSError, ValueError, LookupError, TypeError) as error:
            missing = Path(str(getattr(error, "filename", None))).name
            bad = names.index(missing) if missing in names else 0
        bad = self.group.maximum(bad)
        return names[min(bad, len(names) - 1)] if bad >= 0 else None  # a process may have failed to read the names

    def clean(self) -> None:
        """Remove what a killed process left half-written."""
        for child in self.folder.glob(f"{_WRITING}*"):
            shutil.rmtree(child, ignore_errors=True)


class _HashedFile(io.BufferedWriter):
    """A new file whose checksum is computed while it is written."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path, "x"))
        self.sum = hashlib.sha256()

    def write(self, data: Any) -> int:
        self.sum.update(data)
        return super().write(data)

    def to_disk(self) -> str:
        """Wait until all is on the disk; returns the checksum."""
        self.flush()
        os.fsync(self.fileno())
        return self.sum.hexdigest()


def copy_file(source: Path, to: Path, known: str) -> str:
    """Copy a file to the disk and return its checksum, which must be ``known``."""
    to.unlink(missing_ok=True)
    try:
        with source.open("rb") as file, _HashedFile(to) as copy:
            shutil.copyfileobj(file, copy, 2**20)
            same = copy.to_disk() == known
    except FileNotFoundError:
        raise PskdError(f"{source} is gone: {_GO_ON}") from None
    if not same:
        raise PskdError(f"{source} was changed: {_GO_ON}")
    return known


def _write(part: Any, path: Path) -> str:
    """Write a part of a checkpoint to the disk; returns its checksum."""
    try:
        with _HashedFile(path) as file:
            torch.save(part, file)
            return file.to_disk()
    except (OSError, RuntimeError) as error:
        # When the disk is full, torch's writer fails once more while it closes.
        cause = error if isinstance(error, OSError) else error.__context__
        if isinstance(cause, OSError):
            cause.filename = str(path)
            raise cause from None
        raise


def load(folder: Path, name: str, *, mapped: bool = False) -> Any:
    """One part of a checkpoint, on the CPU; ``mapped`` tensors are read when they are used, and are to be copied."""
    path = folder / f"{name}.pt"
    check_file(path)
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:  # a hostile file can make the reader raise anything
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise PskdError(f"{path} cannot be read ({why}): remove {folder}") from error


def load_progress(folder: Path) -> dict[str, Any]:
    """How far a checkpoint's training was. Version 0.1 called the stretches `begun`."""
    progress = load(folder, "progress")
    if isinstance(progress, dict) and "begun" in progress:
        progress = {"stretches": progress["begun"], **progress}
    schemas.validate(schemas.SavedProgress, progress, "progress.pt", "restore it")
    return dict(progress)


def shards(folder: Path, name: str) -> list[Any]:
    """The parts ``name-0``, ``name-1``, ... of a checkpoint, mapped."""
    return [load(folder, file.stem, mapped=True) for file in sorted(folder.glob(f"{name}-*.pt"))]
