"""Files that are there whole or not at all, and that are never somebody else's behind a link."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from pskd.errors import PskdError
from pskd.workbench.reading import open_file


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write beside and rename into place; a crash leaves the old file or the new one. A link is replaced itself."""
    if not path.name or path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "Is a directory", str(path))
    if path.exists() and not path.is_file() and not path.is_symlink():
        raise PskdError(f"{path} is a device or a pipe, not a file: choose another place")
    beside = path.with_name(f".{path.name}.{os.getpid()}.writing")
    try:
        beside.unlink(missing_ok=True)
        with open_own(beside, "xb") as file:
            file.write(content.encode(errors="backslashreplace") if isinstance(content, str) else content)
        to_disk(beside)
        beside.replace(path)
        to_disk(path.parent)
    finally:
        beside.unlink(missing_ok=True)


def write_named(path: Path, content: str, what: str, beginning: str) -> None:
    """``write_atomic`` at a place that a user names, behind a link, too; there only what begins alike is replaced."""
    path = Path(os.path.realpath(path)) if path.is_symlink() else path
    if path.is_file() and path.stat().st_size:
        with path.open("rb") as file:
            if file.read(len(beginning.encode())) != beginning.encode():
                raise PskdError(f"{path} holds something else than {what} and would be overwritten: name another file")
    write_atomic(path, content)


def write_json(path: Path, value: Any) -> None:
    write_atomic(path, json.dumps(value, indent=2) + "\n")


def open_own(path: Path, mode: str) -> IO[Any]:
    """Open a file of a run or study for writing; a link at its place is refused, not followed.

    What has another name elsewhere, a hard link, becomes a file of its own first: the other one stays as it is.
    """
    try:
        if "a" in mode:
            make_own(path)
        return open(path, mode, opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o644))
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise link_error(path) from None
        raise


def make_own(path: Path) -> None:
    """Copy a file that has another name elsewhere, so that what is written to it is written here alone."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
        beside = path.with_name(f".{path.name}.{os.getpid()}.writing")
        beside.unlink(missing_ok=True)
        with path.open("rb") as old, open_own(beside, "xb") as new:
            shutil.copyfileobj(old, new)
        beside.replace(path)


def link_error(path: Path) -> PskdError:
    return PskdError(f"{path} is a symbolic link, and what it leads to is not ours to write: remove the link")


def check_own(folder: Path) -> None:
    """Refuse a folder in which something that is written to is a link, or no ordinary file."""
    for path in folder.iterdir():
        if path.is_symlink():
            raise link_error(path)
        if not (path.is_file() or path.is_dir()):
            raise PskdError(f"{path} is neither a file nor a folder: remove it")


def checksum(path: Path) -> str:
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def to_disk(path: Path) -> None:
    """Wait until a file, or a folder's list of names, has reached the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


_REASONS = {
    errno.ENOSPC: "the disk is full; free some space, then {again}",
    errno.EDQUOT: "the disk quota is used up; free some space, then {again}",
    errno.EFBIG: "the file would be larger than allowed here (ulimit -f)",
    errno.EROFS: "the file system is read-only; {elsewhere}",
    errno.EACCES: "permission denied; {elsewhere}, or change its permissions",
    errno.EPERM: "permission denied; {elsewhere}, or change its permissions",
    errno.ENOTDIR: "a part of this path is a file, not a folder; {elsewhere}",
    errno.EEXIST: "this is a file, not a folder; {elsewhere}",
    errno.EISDIR: "this is a folder, not a file; {elsewhere}",
    errno.ENAMETOOLONG: "the name is too long; {elsewhere}",
    errno.ENOENT: "there is no such file or folder",
    errno.ELOOP: "a symbolic link leads to itself; {elsewhere}",
}


OF_A_RUN = {"again": "run again with --resume", "elsewhere": "choose another --out"}


@contextlib.contextmanager
def one_line_errors(
    what: str, *, again: str = "run it again", elsewhere: str = "choose another place"
) -> Iterator[None]:
    """What the operating system refuses, in one line with advice that fits the caller."""
    try:
        yield
    except BrokenPipeError:
        raise  # of standard output
    except OSError as error:
        raise PskdError(in_words(error, what, again=again, elsewhere=elsewhere)) from error


def in_words(
    error: OSError, what: str = "", *, again: str = "run it again", elsewhere: str = "choose another place"
) -> str:
    """What the operating system refused, where, and what to do."""
    reason = _REASONS.get(error.errno or 0, error.strerror or str(error)).format(again=again, elsewhere=elsewhere)
    place = " ".join(str(part) for part in (what, error.filename) if part)
    return f"{place}: {reason}" if place else reason
