"""Files that others wrote: opened only if they are ordinary files, of a size that their kind can have."""

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

from pskd.errors import PskdError
from pskd.workbench.space import check_fits

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def open_file(path: str | os.PathLike[str], most: int | None = None) -> io.BufferedReader:
    """Open an ordinary file of at most ``most`` bytes; a pipe or a device, which may never end, is refused."""
    shown = os.fspath(path)
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | getattr(os, "O_NOCTTY", 0))  # does not wait for a writer
    except OSError as error:
        raise PskdError(f"{shown} cannot be read: {error.strerror}") from error
    except ValueError:  # a NUL, or letters that no name can have
        raise PskdError(f"{shown} cannot be read: this is no name of a file") from None
    file = os.fdopen(handle, "rb") if not stat.S_ISDIR((found := os.fstat(handle)).st_mode) else None
    kind = next((name for is_kind, name in _KINDS if is_kind(found.st_mode)), None)
    if file is None or kind is not None:
        os.close(handle) if file is None else file.close()
        raise PskdError(f"{shown} is {kind}, not a file")
    if most is not None and found.st_size > most:
        file.close()
        raise PskdError(f"{shown} has {found.st_size:,} bytes, more than the {most:,} that such a file can have")
    return file


def check_file(path: str | os.PathLike[str], most: int | None = None) -> None:
    """Refuse what ``open_file`` refuses; for libraries that open files themselves."""
    open_file(path, most).close()


def read_bytes(path: str | os.PathLike[str], most: int) -> bytes:
    with open_file(path, most) as file:
        try:
            return file.read(most + 1)  # a file of /proc says that it is empty
        except OSError as error:
            raise PskdError(f"{os.fspath(path)} cannot be read: {error.strerror}") from error


def read_text(path: str | os.PathLike[str], most: int) -> str:
    try:
        return read_bytes(path, most).decode("utf-8")
    except UnicodeDecodeError as error:
        raise PskdError(f"{os.fspath(path)} is no text in UTF-8 (byte {error.start})") from None


def read_json(path: Path, most: int) -> Any:
    return parsed_json(read_text(path, most), path)


def parsed_json(text: str, path: str | os.PathLike[str]) -> Any:
    """What JSON text of a file says."""
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
        except (*_TRIPPED, zipfile.BadZipFile, zlib.error) as error:
            why = (str(error) or type(error).__name__).splitlines()[0]
            raise PskdError(f"{os.fspath(path)} is no .npz file of plain arrays ({why})") from error


_TRIPPED = (OSError, ValueError, TypeError, LookupError, EOFError, AttributeError, ArithmeticError, RuntimeError)
