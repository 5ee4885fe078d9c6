"""Write files: whole or not at all, and never through a link into somebody else's."""

from __future__ import annotations

import contextlib
import csv
import errno
import hashlib
import io
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from pskd.errors import PskdError
from pskd.workbench.reading import open_file


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write beside and rename into place; a crash leaves the old file or the new one. A link itself is replaced."""
    if not path.name or path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "Is a directory", str(path))
    if path.exists() and not path.is_file() and not path.is_symlink():
        raise PskdError(f"{path} is a device or a pipe, not a file: choose another place")
    beside = path.with_name(f".{path.name}.{os.getpid()}.writing")
    try:
        beside.unlink(missing_ok=True)
        with beside.open("xb") as file:  # which follows no link
            file.write(content.encode(errors="backslashreplace") if isinstance(content, str) else content)
        to_disk(beside)
        beside.replace(path)
        to_disk(path.parent)
    finally:
        beside.unlink(missing_ok=True)


def write_named(path: Path, content: str, what: str, beginning: str) -> None:
    """``write_atomic`` at a place that a user names, links followed; only a file with this beginning is replaced."""
    path = Path(os.path.realpath(path)) if path.is_symlink() else path
    if path.is_file() and path.stat().st_size:
        with path.open("rb") as file:
            if file.read(len(beginning.encode())) != beginning.encode():
                raise PskdError(f"{path} holds something else than {what} and would be overwritten: name another file")
    write_atomic(path, content)


def csv_text(lines: Iterable[Iterable[Any]]) -> str:
    """The lines of a table as CSV. Text that a spreadsheet would run as a formula gets an apostrophe in front."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(map(_escape_formula, line) for line in lines)
    return out.getvalue()


def _escape_formula(cell: Any) -> Any:
    if not isinstance(cell, str):
        return cell
    cell = cell.replace("\r", " ")  # which readers take for the end of a line
    if not cell.strip().startswith(("=", "+", "-", "@")) and not cell.startswith("\t"):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def write_json(path: Path, value: Any) -> None:
    write_atomic(path, json.dumps(value, indent=2) + "\n")


def open_own(path: Path, mode: str) -> IO[Any]:
    """Open a file of a run or study to append to it; a link at its place is refused, not followed.

    A file with a second name elsewhere, a hard link, is copied first: the other one stays as it is.
    """
    make_own(path)
    try:
        return open(path, mode, opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o644))
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise link_error(path) from None
        raise


def make_own(path: Path) -> None:
    """Replace a file that has a second name elsewhere by a copy."""
    if path.is_file() and not path.is_symlink() and path.stat().st_nlink > 1:
        beside = path.with_name(f".{path.name}.{os.getpid()}.writing")
        beside.unlink(missing_ok=True)
        with path.open("rb") as old, beside.open("xb") as new:
            shutil.copyfileobj(old, new)
        beside.replace(path)


def link_error(path: Path) -> PskdError:
    return PskdError(f"{path} is a symbolic link, and what it leads to is not ours to write: remove the link")


def check_own(folder: Path) -> None:
    """Refuse a folder in which something is a link, or neither a file nor a folder."""
    for path in folder.iterdir():
        if path.is_symlink():
            raise link_error(path)
        if not (path.is_file() or path.is_dir()):
            raise PskdError(f"{path} is neither a file nor a folder: remove it")


def checksum(path: Path, most: int | None = None) -> str:
    """The SHA-256 sum of a file of at most ``most`` bytes."""
    with open_file(path, most) as file:
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

_ADVICE = {"again": "run it again", "elsewhere": "choose another place"}
OF_A_RUN = {"again": "run again with --resume", "elsewhere": "choose another --out"}


@contextlib.contextmanager
def one_line_errors(what: str, **advice: str) -> Iterator[None]:
    """An error of the operating system becomes one line; ``advice`` replaces texts of ``_ADVICE``."""
    try:
        yield
    except BrokenPipeError:
        raise  # of standard output
    except OSError as error:
        raise PskdError(explain(error, what, **advice)) from error


def explain(error: OSError, what: str = "", **advice: str) -> str:
    """What the operating system refused, where, and what to do."""
    reason = _REASONS.get(error.errno or 0, error.strerror or str(error)).format(**{**_ADVICE, **advice})
    place = " ".join(str(part) for part in (what, error.filename) if part)
    return f"{place}: {reason}" if place else reason
