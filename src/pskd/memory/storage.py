"""Where the rows of a bank lie: in RAM, on a device, or in a memory-mapped file."""

from __future__ import annotations

import math
import mmap
import os
import stat
import weakref
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from pskd.errors import PskdError

_ALIGNMENT = 64  # bytes: a column starts on a cache line
_HEADER = 512  # bytes before the first column
_MAGIC = b"pskd bank, scratch: "

Columns: TypeAlias = dict[str, tuple[int, torch.dtype]]
"""Name -> width and type of a column."""


class Storage:
    """Named columns of ``rows`` rows each, all zero at first. Column ``name`` is (rows, width) of its type.

    With a ``path`` the columns lie in one file. The first process to open it empties it; the others of the same host,
    which open it while the first one lives, map the same bytes.
    """

    def __init__(self, rows: int, columns: Columns, *, path: str | Path | None, device: torch.device) -> None:
        self.device = device
        self._is_mapped = path is not None
        if path is None:
            self._columns = {
                name: torch.zeros(rows, width, dtype=dtype, device=device) for name, (width, dtype) in columns.items()
            }
        else:
            self._columns = self._mapped(rows, columns, Path(path))

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in self._columns.values())

    def read(self, name: str, index: Tensor) -> Tensor:
        """The rows ``index`` (B) of one column, (B, width)."""
        return self._columns[name].index_select(0, index)

    def write(self, index: Tensor, columns: dict[str, Tensor]) -> None:
        """Write the rows ``index`` (B) of the named columns, each (B, width)."""
        for name, rows in columns.items():
            column = self._columns[name]
            column.index_copy_(0, index, rows.to(column.dtype))

    def fill(self, name: str, index: Tensor, value: int) -> None:
        """Write one value into the rows ``index`` (B) of a column."""
        self._columns[name].index_fill_(0, index, value)

    def clear(self) -> None:
        for column in self._columns.values():
            column.zero_()

    def rows(self, count: int) -> dict[str, Tensor]:
        """Views of the first ``count`` rows of every column."""
        return {name: column[:count] for name, column in self._columns.items()}

    def load(self, rows: dict[str, Tensor]) -> None:
        """Put back what ``rows`` gave."""
        for name, column in self._columns.items():
            column[: len(rows[name])].copy_(rows[name])

    def _mapped(self, rows: int, columns: Columns, path: Path) -> dict[str, Tensor]:
        offsets, end = {}, _HEADER
        for name, (width, dtype) in columns.items():
            offsets[name] = end
            end += math.ceil(rows * width * dtype.itemsize / _ALIGNMENT) * _ALIGNMENT
        layout = ", ".join(f"{name} {rows} x {width} {dtype}" for name, (width, dtype) in columns.items())
        try:
            file = _opened(path, _MAGIC + layout.encode(), end)
            weakref.finalize(self, os.close, file)  # also at the interpreter's end, when a __del__ finds no os left
            whole = mmap.mmap(file, end)
        except OSError as error:
            raise PskdError(f"path: cannot map {end:,} bytes of {path}: {error.strerror}; name another file") from error
        return {
            name: torch.frombuffer(whole, dtype=dtype, count=rows * width, offset=offsets[name]).view(rows, width)
            for name, (width, dtype) in columns.items()
        }

    def __getstate__(self) -> dict[str, Any]:
        if self._is_mapped:
            # A copy would be no longer the bank that other processes see.
            raise PskdError("a bank in a mapped file cannot be copied or pickled; load its state_dict() into another")
        return self.__dict__


def _opened(path: Path, header: bytes, size: int) -> int:
    """A descriptor of the file, which has ``size`` bytes then, all zero unless another living process shares it.

    The lock is held as long as the descriptor is open: whoever gets it alone is the first one.
    """
    import fcntl  # not on Windows, where the other banks still work

    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        raise PskdError(f"path: {path} is a symbolic link; name the file itself")
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise PskdError(f"path: {path} is no ordinary file; name another")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(file, fcntl.LOCK_SH)  # waits until the first one has made the file
        except OSError as error:
            why = f"the file system of {path} cannot lock files ({error.strerror})"
            raise PskdError(f"path: {why}; name a file elsewhere") from None
        else:
            _made_anew(path, file, header, size)
            fcntl.flock(file, fcntl.LOCK_SH)
        if (there := os.pread(file, _HEADER, 0).rstrip(b"\0")) != header:
            raise PskdError(f"path: {path} is in use for {there!r}, not {header!r}; name another file")
    except BaseException:
        os.close(file)
        raise
    return file


def _made_anew(path: Path, file: int, header: bytes, size: int) -> None:
    if os.fstat(file).st_size and os.pread(file, len(_MAGIC), 0) != _MAGIC:
        raise PskdError(f"path: {path} holds something else than a bank and would be overwritten; name another file")
    os.ftruncate(file, 0)
    os.pwrite(file, header, 0)
    # With its blocks reserved, a full disk is an error here and not the end of the process at some later write.
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(file, 0, size)
        except OSError:
            os.ftruncate(file, 0)
            raise
    os.ftruncate(file, size)
