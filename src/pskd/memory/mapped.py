"""A memory-mapped scratch file that the processes of a host share."""

from __future__ import annotations

import math
import mmap
import os
import stat
import weakref
from pathlib import Path

import torch
from torch import Tensor

from pskd.errors import PskdError

_HEADER = 512  # bytes before the numbers
_MAGIC = b"pskd bank, scratch: "


def map_file(path: Path, shape: tuple[int, ...], dtype: torch.dtype, layout: str) -> Tensor:
    """A tensor in a file, all zero unless another living process shares it.

    The first process to open the file empties it; the others of the same host, which open it while the first one lives,
    map the same bytes. It stays open as long as the tensor lives; all who share it give the same ``layout``.
    """
    count = math.prod(shape)
    end = _HEADER + count * dtype.itemsize
    try:
        file = _open_file(path, _MAGIC + layout.encode(), end)
        whole = mmap.mmap(file, end)
        weakref.finalize(whole, os.close, file)  # also at the interpreter's end, when a __del__ finds no os left
    except OSError as error:
        raise PskdError(f"path: cannot map {end:,} bytes of {path}: {error.strerror}; name another file") from error
    return torch.frombuffer(whole, dtype=dtype, count=count, offset=_HEADER).view(shape)


def _open_file(path: Path, header: bytes, size: int) -> int:
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
            _make_anew(path, file, header, size)
            fcntl.flock(file, fcntl.LOCK_SH)
        if (there := os.pread(file, _HEADER, 0).rstrip(b"\0")) != header:
            raise PskdError(f"path: {path} is in use for {there!r}, not {header!r}; name another file")
    except BaseException:
        os.close(file)
        raise
    return file


def _make_anew(path: Path, file: int, header: bytes, size: int) -> None:
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
