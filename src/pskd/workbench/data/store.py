"""Decoded images in one mapped file with an index, which grows and is never rewritten.

A folder holds `pixels.bin`, the images (H, W, C) uint8 one after the other, and `index.bin`, a record for each. A
record is written when its pixels are on the disk. So a process can be killed at any instant: pixels without a record
are overwritten by the next process that adds images, under a lock.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from torch import Tensor

from pskd.errors import PskdError
from pskd.workbench.data.refusing import refusing
from pskd.workbench.reading import open_file, read_json
from pskd.workbench.space import format_bytes

COMMIT_BYTES, COMMIT_SECONDS = 64_000_000, 1.0  # what a kill can cost
RESERVE = 256_000_000  # bytes of a disk that are left to others
# Of an image: its key, the byte at which it begins, its size, what was done to it, and a checksum of all these.
RECORD = np.dtype(
    [("key", "<u8", 2), ("offset", "<u8"), ("width", "<u4"), ("height", "<u4"), ("kind", "<u8"), ("checksum", "<u8")]
)
_MAGIC = "decoded images of pskd"


class StoredImage(NamedTuple):
    """A kept image: (H, W, C) uint8, and a small number that says what was done to it."""

    pixels: np.ndarray
    kind: int


class NewImages(NamedTuple):
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
        size = (self.folder / "pixels.bin").stat().st_size
        with open_file(self.folder / "index.bin") as file:
            content = file.read()
        records = np.frombuffer(content, RECORD, len(content) // RECORD.itemsize)
        length = self.lengths(records)
        sound = _checksum(records) == records["checksum"]
        sound &= (length > 0) & (length <= size) & (records["offset"] <= size - np.minimum(length, np.uint64(size)))
        self.records = records[sound]
        self._order = np.argsort(self.records["key"][:, 0], kind="stable")
        self._map: np.ndarray | None = None

    def lengths(self, records: np.ndarray) -> np.ndarray:
        """The images' bytes (N) uint64; 0 for a size that no image has."""
        height, width = (records[side].astype("<u8") for side in ("height", "width"))
        sane = (height < 2**20) & (width < 2**20)
        return np.where(sane, height * width * np.uint64(self.channels), np.uint64(0))

    def places(self, keys: np.ndarray) -> np.ndarray:
        """Where in the index the images with these ``keys`` (N, 2) uint64 are: (N) int64, -1 for those that are not."""
        if not len(self.records):
            return np.full(len(keys), -1)
        known = self.records["key"]
        near = np.searchsorted(known[self._order, 0], keys[:, 0]).clip(max=len(self._order) - 1)
        places = self._order[near]
        return np.where((known[places] == keys).all(1), places, -1)

    def __getitem__(self, place: int) -> StoredImage:
        """One image; its pixels are a view of the mapped file, and no change of them reaches the file."""
        if self._map is None:
            with open_file(self.folder / "pixels.bin") as file:  # private, as torch warns of memory that is read-only
                self._map = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), np.uint8)
        _, offset, width, height, kind, _ = self.records[place].item()
        pixels = self._map[offset : offset + height * width * self.channels]
        return StoredImage(pixels.reshape(height, width, self.channels), kind)

    @contextlib.contextmanager
    def adding(self) -> Iterator[Writer]:
        """Add images, as the only one of all processes; what a killed process left unfinished is cut off first."""
        import fcntl

        with self._writing(), self._open("lock", "ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.refresh()
            with self._open("index.bin", "r+b") as index, self._open("pixels.bin", "r+b") as pixels:
                writer = Writer(self, index, pixels)
                try:
                    yield writer
                finally:
                    writer.commit()
        self.refresh()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_map": None}  # a mapped file would be copied

    def _begin(self) -> None:
        about, file = {"what": _MAGIC, **self.about}, self.folder / "about.json"
        with self._writing():
            self.folder.mkdir(parents=True, exist_ok=True)
            if not file.exists():
                # Other processes may have begun, too, and been killed.
                names = {name for name in os.listdir(self.folder) if not name.startswith(".about.")}
                if names - {"pixels.bin", "index.bin", "lock"}:
                    raise PskdError(f"data.cache: {self.folder} holds something else: name another folder")
                beside = f".about.{os.getpid()}.json"
                with self._open(beside, "wb") as content:
                    content.write(json.dumps(about, indent=2).encode())
                (self.folder / beside).replace(file)
            for name in ("pixels.bin", "index.bin"):
                self._open(name, "ab").close()
        if read_json(file, 2**16) != about:
            raise PskdError(f"data.cache: {self.folder} was made for other images: name another folder, or remove it")

    def _open(self, name: str, mode: str) -> IO[bytes]:
        """Open a file for writing; a link is not followed."""
        return open(self.folder / name, mode, opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW, 0o644))

    def _writing(self) -> contextlib.AbstractContextManager[None]:
        advice = "free some space, name another place with data.cache=..., or leave it out: the results are the same"
        return refusing(f"data.cache: cannot write to {self.folder}", advice, OSError)


class Writer:
    """Adds images to a store, whose lock is held."""

    def __init__(self, store: Store, index: IO[bytes], pixels: IO[bytes]) -> None:
        self.store, self._index, self._pixels = store, index, pixels
        self._new: list[tuple[Any, ...]] = []
        self._unsaved, self._saved_at = 0, time.monotonic()
        records = store.records
        self._offset = int((records["offset"] + store.lengths(records)).max(initial=0))
        if index.seek(0, os.SEEK_END) != records.nbytes:  # torn or damaged records; the sound ones stay
            index.seek(0)
            index.write(records.tobytes())
            index.truncate()
        pixels.truncate(self._offset)
        pixels.seek(self._offset)

    def add(self, keys: np.ndarray, images: NewImages) -> None:
        """Append images with these ``keys`` (M, 2); they count a second later, or when enough of them are there."""
        self._pixels.write(images.pixels.numpy().data)
        for key, (height, width, kind) in zip(keys.tolist(), images.about.tolist(), strict=True):
            self._new.append((key, self._offset, width, height, kind, 0))
            self._offset += height * width * self.store.channels
        self._unsaved += len(images.pixels)
        if self._unsaved > COMMIT_BYTES or time.monotonic() - self._saved_at > COMMIT_SECONDS:
            self.commit()

    def commit(self) -> None:
        """Write the pixels to the disk, and then their records."""
        if not self._new:
            return
        self._pixels.flush()
        os.fsync(self._pixels.fileno())
        records = np.array(self._new, RECORD)
        records["checksum"] = _checksum(records)
        self._index.write(records.tobytes())
        self._index.flush()
        os.fsync(self._index.fileno())
        self._new, self._unsaved, self._saved_at = [], 0, time.monotonic()
        check_space(self.store.folder, 0, "more images")


def check_space(folder: Path, needed: float, what: str) -> None:
    """Refuse what would fill the disk."""
    if (free := free_space(folder)) < needed + RESERVE:
        raise PskdError(
            f"data.cache={folder} needs {format_bytes(needed + RESERVE)} for {what}"
            f" and there are {format_bytes(free)}: free some space, name another place,"
            " or leave it out: the results are the same"
        )


def free_space(folder: Path) -> float:
    """Bytes that this user can still write there."""
    disk = os.statvfs(folder)
    return float(disk.f_bavail * disk.f_frsize)


def _checksum(records: np.ndarray) -> np.ndarray:
    """A number (N) uint64 that says whether a record is whole."""
    total = np.full(len(records), 0x9E3779B97F4A7C15, np.uint64)
    for word in records.view("<u8").reshape(-1, RECORD.itemsize // 8).T[:-1]:
        total = (total ^ word) * np.uint64(0xBF58476D1CE4E5B9)
        total ^= total >> np.uint64(29)
    return total
