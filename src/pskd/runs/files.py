"""Files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pskd.errors import PskdError


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write beside and rename into place; a crash leaves the old file or the new one."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.writing")
    try:
        beside.write_bytes(content.encode() if isinstance(content, str) else content)
        to_disk(beside)
        beside.replace(path)
        to_disk(path.parent)
    finally:
        beside.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    write_atomic(path, json.dumps(value, indent=2) + "\n")


def to_disk(path: Path) -> None:
    """Wait until a file, or a folder's list of names, has reached the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


_REASONS = {
    errno.ENOSPC: "the disk is full; free some space, then run again with --resume",
    errno.EDQUOT: "the disk quota is used up; free some space, then run again with --resume",
    errno.EFBIG: "the file would be larger than allowed here (ulimit -f)",
    errno.EROFS: "the file system is read-only; choose another --out",
    errno.EACCES: "permission denied; choose another --out, or change its permissions",
    errno.EPERM: "permission denied; choose another --out, or change its permissions",
    errno.ENOTDIR: "a part of this path is a file, not a folder; choose another --out",
}


@contextlib.contextmanager
def one_line_errors(what: str) -> Iterator[None]:
    """What the operating system refuses, in one line."""
    try:
        yield
    except OSError as error:
        if error.errno not in _REASONS:
            raise
        raise PskdError(f"{what} {error.filename or ''}: {_REASONS[error.errno]}".replace(" :", ":")) from error
