"""Decoded images in one mapped file with an index, which grows and is never rewritten.

A folder holds `pixels.bin`, the images (H, W, C) uint8 one after the other, and `index.bin`, a record for each: the
image's key, where it begins, its size and what it is. A record is written when its pixels are on the disk. So a process
can be killed at any instant: what has no record is overwritten by the next one that builds, under a lock.
"""

from __future__ import annotations

import contextlib
import errno
import json
import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from pskd.errors import PskdError
from pskd.workbench.data.reason import reason
from pskd.workbench.reading import open_file, read_json
from pskd.workbench.space import shown

COMMIT_BYTES, COMMIT_SECONDS = 64_000_000, 1.0  # what a kill can cost
RESERVE = 256_000_000  # bytes of a disk that are left to others
_WORDS = 6  # of a record: key (2), offset, height and width, kind, checksum
_MAGIC = "decoded images of pskd"


class Entry(NamedTuple):
    """A kept image: (H, W, C) uint8, and a small number that says what was done to it."""

    pixels: np.ndarray
    kind: int


class Entries(NamedTuple):
    """Images to be kept: all their bytes, and the height, the width and the kind of each, (M, 3) int64."""

    pixels: Tensor
    about: Tensor


class Store:
    """The images of one folder.

    Args:
        folder: is made if it is not there; one that holds something else is refused.
        about: what all its images have in common; a folder of others is refused.
    """

    def __init__(self, folder: Path, about: dict[str, Any]) -> None:
        self.folder, self.about, self.channels = folder, about, int(about["channels"])
        self._begin()
        self.refresh()

    def refresh(self) -> None:
        """See what others have added."""
        size = self._pixels_file.stat().st_size
        records = self._records()
        sound = _checksum(records) == records[:, -1]
        offset, bytes_ = records[:, 2], self._bytes(records)
        sound &= (bytes_ > 0) & (bytes_ <= size) & (offset <= np.uint64(size) - np.minimum(bytes_, np.uint64(size)))
        self._order = np.argsort(records[sound, 0], kind="stable")
        self.records = records[sound]
        self._map: np.ndarray | None = None

    def places(self, keys: np.ndarray) -> np.ndarray:
        """Where in the index the images with these ``keys`` (N, 2) uint64 are: (N) int64, -1 for those that are not."""
        if not len(self.records):
            return np.full(len(keys), -1)
        near = np.searchsorted(self.records[self._order, 0], keys[:, 0]).clip(max=len(self._order) - 1)
        found = self._order[near]
        return np.where((self.records[found, :2] == keys).all(1), found, -1)

    def __getitem__(self, place: int) -> Entry:
        """One image; its pixels are a view of the mapped file, which others do not see changes of."""
        if self._map is None:
            self._map = _mapped(self._pixels_file)
        _, _, offset, size, kind, _ = map(int, self.records[place])
        height, width = size >> 32, size & 0xFFFFFFFF
        pixels = self._map[offset : offset + height * width * self.channels]
        return Entry(pixels.reshape(height, width, self.channels), kind)

    @contextlib.contextmanager
    def adding(self) -> Iterator[Adding]:
        """Alone among all processes, add images; what a killed process left unfinished is cut off first."""
        import fcntl

        try:
            with open(self.folder / "lock", "ab", opener=_no_link) as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                self.refresh()
                with Adding(self) as adding:
                    yield adding
        except OSError as error:
            raise self._refused(error) from error
        self.refresh()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_map": None}  # a mapped file would be copied

    @property
    def _pixels_file(self) -> Path:
        return self.folder / "pixels.bin"

    @property
    def _index_file(self) -> Path:
        return self.folder / "index.bin"

    def _records(self) -> np.ndarray:
        with open_file(self._index_file) as file:
            content = file.read()
        whole = len(content) // (8 * _WORDS) * 8 * _WORDS
        return np.frombuffer(content[:whole], "<u8").reshape(-1, _WORDS)

    def _bytes(self, records: np.ndarray) -> np.ndarray:
        height, width = records[:, 3] >> np.uint64(32), records[:, 3] & np.uint64(0xFFFFFFFF)
        sane = (height < 2**20) & (width < 2**20)
        return np.where(sane, height * width * np.uint64(self.channels), 0).astype(np.uint64)

    def _begin(self) -> None:
        about = {"what": _MAGIC, **self.about}
        file = self.folder / "about.json"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if not file.exists():
                if set(os.listdir(self.folder)) - {"pixels.bin", "index.bin", "lock"} - _begun(self.folder):
                    raise PskdError(f"data.cache: {self.folder} holds something else: name another folder")
                beside = self.folder / f".about.{os.getpid()}.json"
                with open(beside, "w", opener=_no_link) as text:
                    json.dump(about, text, indent=2)
                beside.replace(file)
            for name in (self._pixels_file, self._index_file):
                open(name, "ab", opener=_no_link).close()
        except OSError as error:
            raise self._refused(error) from error
        if read_json(file, 2**16) != about:
            raise PskdError(f"data.cache: {self.folder} was made for other images: name another folder, or remove it")

    def _refused(self, error: OSError) -> PskdError:
        advice = "name another place with data.cache=..., or leave it out: the results are the same"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return PskdError(f"data.cache: the disk of {self.folder} is full; free some space, {advice}")
        return PskdError(f"data.cache: cannot write to {self.folder} ({reason(error)}): {advice}")


class Adding:
    """Adds images to a store, whose lock is held."""

    def __init__(self, store: Store) -> None:
        self.store, records = store, store.records
        ends = records[:, 2] + store._bytes(records)
        self._offset, self._kept = (int(ends.max()) if len(ends) else 0), records
        self._new: list[tuple[int, ...]] = []
        self._unsaved, self._saved_at = 0, time.monotonic()

    def __enter__(self) -> Adding:
        self._index = open(self.store._index_file, "r+b", opener=_no_link)
        self._pixels = open(self.store._pixels_file, "r+b", opener=_no_link)
        if self._index.seek(0, os.SEEK_END) != self._kept.nbytes:  # torn or damaged records; the sound ones stay
            self._index.seek(0)
            self._index.write(self._kept.tobytes())
            self._index.truncate()
        self._pixels.truncate(self._offset)
        self._pixels.seek(self._offset)
        return self

    def __exit__(self, *failure: object) -> None:
        with self._index, self._pixels:
            self._commit()

    def add(self, keys: np.ndarray, entries: Entries) -> None:
        """Append images with these ``keys`` (M, 2); they count a second later, or when enough of them are there."""
        self._pixels.write(entries.pixels.numpy().data)
        for (first, second), (height, width, kind) in zip(keys.tolist(), entries.about.tolist(), strict=True):
            self._new.append((first, second, self._offset, height << 32 | width, kind, 0))
            self._offset += height * width * self.store.channels
        self._unsaved += len(entries.pixels)
        if self._unsaved > COMMIT_BYTES or time.monotonic() - self._saved_at > COMMIT_SECONDS:
            self._commit()

    def _commit(self) -> None:
        if not self._new:
            return
        self._pixels.flush()
        os.fsync(self._pixels.fileno())
        records = np.array(self._new, "<u8")
        records[:, -1] = _checksum(records)
        self._index.write(records.tobytes())
        self._index.flush()
        os.fsync(self._index.fileno())
        self._new, self._unsaved, self._saved_at = [], 0, time.monotonic()
        check_space(self.store.folder, 0, "more images")


def check_space(folder: Path, needed: float, what: str) -> None:
    """Refuse what would fill the disk."""
    if (free := free_space(folder)) < needed + RESERVE:
        raise PskdError(
            f"data.cache={folder} needs {shown(needed + RESERVE)} for {what} and there are {shown(free)}: free some"
            " space, name another place, or leave it out: the results are the same"
        )


def free_space(folder: Path) -> float:
    """Bytes that this user can still write there."""
    found = os.statvfs(folder)
    return float(found.f_bavail * found.f_frsize)


def _checksum(records: np.ndarray) -> np.ndarray:
    """A number (N) uint64 that says whether a record is whole."""
    total = np.full(len(records), 0x9E3779B97F4A7C15, np.uint64)
    for word in range(_WORDS - 1):
        total = (total ^ records[:, word]) * np.uint64(0xBF58476D1CE4E5B9)
        total ^= total >> np.uint64(29)
    return total


def _mapped(path: Path) -> np.ndarray:
    """The bytes of a file; private, as torch warns of memory that cannot be written."""
    with open_file(path) as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), np.uint8)


def _begun(folder: Path) -> set[str]:
    """What processes that were killed, or are at it, have not renamed yet."""
    return {path.name for path in folder.glob(".about.*.json")}


def _no_link(name: str, flags: int) -> int:
    return os.open(name, flags | os.O_NOFOLLOW, 0o644)
