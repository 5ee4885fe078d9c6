"""Checkpoints: written beside and renamed into place, with a checksum for every byte.

A checkpoint is a folder named after the optimizer steps that were done, with one file per part and a manifest. Files
hold tensors, numbers and strings only, and are read with ``weights_only=True``: no code runs from a checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, cast

import torch

from pskd.errors import PskdError
from pskd.workbench.reading import check_file, read_json
from pskd.workbench.runs import schemas
from pskd.workbench.runs.files import checksum, open_own, to_disk, write_json
from pskd.workbench.runs.group import Group

_MANIFEST = "manifest.json"
_WRITING = ".writing-"
_SUMS = "checksums-"
_BEGUN = ".checkpointed"  # beside the folder: there was a whole checkpoint at some time
_ANEW = "or begin the training anew with another --out (or in this one, if you remove the folder checkpoints yourself)"
_GO_ON = "go on from the last checkpoint with --resume"


class Checkpoints:
    """The checkpoints of one run, newest last.

    Each process of the run writes parts of its own and takes a share of the checking; the leader completes.
    """

    def __init__(self, folder: Path, keep_last: int, group: Group | None = None) -> None:
        self.folder, self.keep_last, self.group = folder, keep_last, group or Group()

    def save(self, step: int, parts: Mapping[str, Any], files: Mapping[Path, str] | None = None) -> Path:
        """Write this process's parts of the checkpoint of ``step``; it counts once all are on disk.

        Copies of ``files``, each with the checksum that it must have, are parts of it, too.
        """
        writing, final = self.folder / f"{_WRITING}{step:09d}", self.folder / f"{step:09d}"
        leader, barrier = self.group.leader, self.group.barrier
        if leader:
            self.folder.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(writing, ignore_errors=True)
            writing.mkdir()
        barrier()
        try:
            # Each process leaves the checksums of its own files, so that no byte is read back or sent to the leader.
            sums = {f"{name}.pt": _write(part, writing / f"{name}.pt") for name, part in parts.items()}
            for file, known in (files or {}).items():
                sums[file.name] = copied(file, writing / file.name, known)
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
        """Take a checkpoint away; one that is half gone does not look like one that was damaged."""
        if folder.exists():
            gone = folder.with_name(f"{_WRITING}over-{folder.name}")
            shutil.rmtree(gone, ignore_errors=True)
            folder.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)

    def steps(self) -> list[int]:
        """The steps of all checkpoints, oldest first; one that is not whole was damaged."""
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise PskdError(f"{self.folder} cannot be read ({error.strerror}): make it readable, {_ANEW}") from None
        return sorted(int(name) for name in names if re.fullmatch(r"[0-9]{9}", name))

    def last_good(self) -> str:
        """Where the last checkpoint is, in words."""
        steps = self.steps()
        return f"the last checkpoint is {self.folder / f'{steps[-1]:09d}'}" if steps else "none is saved"

    def newest(self, report: Callable[[str], None]) -> Path | None:
        """The newest checkpoint whose every byte is as it was written; a damaged one is reported and passed over.

        None: none was ever saved. Where there were some and none is good, to begin anew would destroy what is left.
        """
        steps, damaged = self.steps(), ""
        begun = self.folder.with_name(_BEGUN)
        if self.group.leader and not self.folder.exists():
            begun.unlink(missing_ok=True)  # a user has removed the folder, to begin anew
        if self.group.maximum(int(self.group.leader and not steps and begun.exists())):
            raise PskdError(f"the checkpoints in {self.folder} are gone: bring one back, {_ANEW}")
        while True:
            # The leader's list counts: another host may see the folder a little later.
            step = self.group.maximum(steps.pop() if self.group.leader and steps else -1)
            if step < 0 and damaged:
                raise PskdError(f"{damaged}, and there is no other: bring one back, {_ANEW}")
            if step < 0:
                return None
            if damaged:
                report(f"{damaged}; using the one before")
            folder = self.folder / f"{step:09d}"
            names, bad = self._check(folder)
            if bad < 0:
                return folder
            damaged = f"checkpoint {folder} is damaged ({names[bad]} was changed)"

    def _check(self, folder: Path) -> tuple[list[str], int]:
        """The files of a checkpoint, and which of them is not as it was written, -1 if all are; shared by processes."""
        names, bad = [_MANIFEST], -1
        try:
            manifest = folder / _MANIFEST
            whole = schemas.checked(schemas.Manifest, read_json(manifest, 2**25), manifest, "")
            files, sizes = whole.files, whole.sizes
            names += files
            for position in range(1 + self.group.rank, len(names), self.group.world):
                name = names[position]
                known = sizes.get(name)  # not in checkpoints of an earlier release; to sum up may take for ever
                same = Path(name).name == name and known in (None, (folder / name).stat().st_size)
                if not same or checksum(folder / name) != files[name]:
                    bad = position
        except (OSError, ValueError, LookupError, TypeError) as error:
            missing = Path(str(getattr(error, "filename", None))).name
            bad = names.index(missing) if missing in names else 0
        return names, self.group.maximum(bad)

    def clean(self) -> None:
        """Remove what a killed process left half-written."""
        for child in self.folder.glob(f"{_WRITING}*"):
            shutil.rmtree(child, ignore_errors=True)


class _Hashing:
    """A file that sums up what is written to it: all of it that torch.save needs."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.sum = file, hashlib.sha256()

    def write(self, data: Any) -> int:
        self.sum.update(data)
        return self.file.write(data)

    def flush(self) -> None:
        self.file.flush()


def copied(source: Path, to: Path, known: str) -> str:
    """Copy a file that must have this checksum, and wait until it is on the disk; returns the checksum."""
    to.unlink(missing_ok=True)
    try:
        with source.open("rb") as file, open_own(to, "xb") as copy:
            hashing = _Hashing(copy)
            shutil.copyfileobj(file, cast(IO[bytes], hashing), 2**20)
            copy.flush()
            os.fsync(copy.fileno())
    except FileNotFoundError:
        raise PskdError(f"{source} is gone: {_GO_ON}") from None
    if hashing.sum.hexdigest() != known:
        raise PskdError(f"{source} was changed: {_GO_ON}")
    return known


def _write(part: Any, path: Path) -> str:
    """Write a part of a checkpoint and wait until it is on the disk; returns its checksum."""
    try:
        with path.open("wb") as file:
            hashing = _Hashing(file)
            torch.save(part, cast(IO[bytes], hashing))
            file.flush()
            os.fsync(file.fileno())
            return hashing.sum.hexdigest()
    except (OSError, RuntimeError) as error:
        # When the disk is full, torch's writer fails once more while it closes.
        cause = error if isinstance(error, OSError) else error.__context__
        if isinstance(cause, OSError):
            cause.filename = str(path)
            raise cause from None
        raise


def load(folder: Path, name: str, *, mapped: bool = False) -> Any:
    """One part of a checkpoint, on the CPU; ``mapped`` tensors are read when they are used, and are to be copied."""
    check_file(folder / f"{name}.pt")
    try:
        return torch.load(folder / f"{name}.pt", map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:  # whatever a hostile file makes of the reader
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise PskdError(f"{folder / name}.pt cannot be read ({why}): remove {folder}") from error


def shards(folder: Path, name: str) -> list[Any]:
    """The parts ``name-0``, ``name-1``, ... of a checkpoint, mapped."""
    return [load(folder, file.stem, mapped=True) for file in sorted(folder.glob(f"{name}-*.pt"))]
