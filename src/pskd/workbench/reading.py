"""Read files that others wrote: only ordinary files, and only of a size that such a file can have."""

from __future__ import annotations

import io
import json
import os
import stat
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from pskd.errors import RECOVERABLE, PskdError, single_line
from pskd.workbench.space import check_fits

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_file(path: str | os.PathLike[str], most: int | None = None) -> io.BufferedReader:
    """Open an ordinary file of at most ``most`` bytes. A pipe or a device, which may never end, is refused."""
    name = os.fspath(path)
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | getattr(os, "O_NOCTTY", 0))  # does not wait for a writer
    except OSError as error:
        raise PskdError(f"{name} cannot be read: {error.strerror}") from error
    except ValueError:  # a NUL, or characters that no name can have
        raise PskdError(f"{name} cannot be read: this is no name of a file") from None
    status = os.fstat(handle)
    kind = _KINDS.get(stat.S_IFMT(status.st_mode))
    if kind is None and (most is None or status.st_size <= most):
        return os.fdopen(handle, "rb")
    os.close(handle)
    if kind is not None:
        raise PskdError(f"{name} is {kind}, not a file")
    raise PskdError(f"{name} has {status.st_size:,} bytes, more than the {most:,} that such a file can have")


def check_file(path: str | os.PathLike[str], most: int | None = None) -> None:
    """Refuse what ``open_file`` refuses; for libraries that open files themselves."""
    open_file(path, most).close()


def read_bytes(path: str | os.PathLike[str], most: int) -> bytes:
    with open_file(path, most) as file:
        try:
            return file.read(most + 1)  # a file in /proc has size 0 whatever it holds
        except OSError as error:
            raise PskdError(f"{os.fspath(path)} cannot be read: {error.strerror}") from error


def read_text(path: str | os.PathLike[str], most: int) -> str:
    try:
        return read_bytes(path, most).decode("utf-8")
    except UnicodeDecodeError as error:
        raise PskdError(f"{os.fspath(path)} is no text in UTF-8 (byte {error.start})") from None


def read_json(path: Path, most: int) -> Any:
    return parse_json(read_text(path, most), path)


def parse_json(text: str, path: str | os.PathLike[str]) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise PskdError(f"{os.fspath(path)} is not valid JSON ({why})") from None


def read_npz(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """The arrays of an .npz file, which must fit into memory; nothing is unpickled."""
    with open_file(path) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                unpacked = sum(entry.file_size for entry in archive.infolist())
            check_fits(2.0 * unpacked, os.fspath(path), "take a smaller file")
            file.seek(0)
            with np.load(file, allow_pickle=False) as arrays:
                return {name: arrays[name] for name in arrays.files}
        except PskdError:
            raise
        except MemoryError:
            raise PskdError(f"{os.fspath(path)} holds an array that is larger than the memory") from None
        except (OSError, EOFError, *RECOVERABLE, zipfile.BadZipFile, zlib.error) as error:
            why = single_line(error) or type(error).__name__
            raise PskdError(f"{os.fspath(path)} is no .npz file of plain arrays ({why})") from error
