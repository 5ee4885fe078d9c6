"""Rows of plain integers in RAM, on a device, or in a memory-mapped file."""

from __future__ import annotations

import math
import os
from pathlib import Path

import torch
from torch import Tensor

from pskd.errors import PskdError

_ALIGNMENT = 64  # bytes: a column starts on a cache line


class Storage:
    """Named columns of ``rows`` rows each, all zero at first. Column ``name`` is (rows, width) of its type.

    With a ``path`` the columns lie in one file. The first process to open it empties it; the others of the same host,
    which open it while the first one lives, map the same bytes.
    """

    def __init__(
        self, rows: int, columns: dict[str, tuple[int, torch.dtype]], *, path: str | Path | None, device: torch.device
    ) -> None:
        self.device = device
        self._lock: int | None = None
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
        """The rows ``index`` (B, ...) of one column, (B, ..., width)."""
        column = self._columns[name]
        return column.index_select(0, index.flatten()).view(*index.shape, column.shape[1])

    def write(self, index: Tensor, columns: dict[str, Tensor]) -> None:
        """Write the rows ``index`` (B) of the named columns, each (B, width)."""
        for name, rows in columns.items():
            column = self._columns[name]
            column.index_copy_(0, index, rows.to(column.device, column.dtype))

    def clear(self) -> None:
        for column in self._columns.values():
            column.zero_()

    def rows(self, count: int) -> dict[str, Tensor]:
        """Views of the first ``count`` rows of every column."""
        return {name: column[:count] for name, column in self._columns.items()}

    def load(self, rows: dict[str, Tensor]) -> None:
        """Put back what ``rows`` gave."""
        for name, column in self._columns.items():
            column.zero_()
            column[: len(rows[name])].copy_(rows[name])

    def _mapped(self, rows: int, columns: dict[str, tuple[int, torch.dtype]], path: Path) -> dict[str, Tensor]:
        import fcntl

        offsets, end = {}, 0
        for name, (width, dtype) in columns.items():
            offsets[name] = end
            end += math.ceil(rows * width * dtype.itemsize / _ALIGNMENT) * _ALIGNMENT
        path.parent.mkdir(parents=True, exist_ok=True)
        # The lock lives as long as this process: whoever gets it alone is the first one and starts with an empty file.
        self._lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(self._lock, fcntl.LOCK_SH)
        else:
            os.ftruncate(self._lock, 0)
            os.truncate(self._lock, end)
            fcntl.flock(self._lock, fcntl.LOCK_SH)
        if (size := os.fstat(self._lock).st_size) != end:
            raise PskdError(f"path: {path} is in use by a bank of another size ({size} bytes, not {end}); name another")
        whole = torch.from_file(str(path), shared=True, size=end, dtype=torch.uint8)
        return {
            name: whole[offsets[name] : offsets[name] + rows * width * dtype.itemsize].view(dtype).view(rows, width)
            for name, (width, dtype) in columns.items()
        }

    def __del__(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
