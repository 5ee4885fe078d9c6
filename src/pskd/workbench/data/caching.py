"""`data.cache`: images that are decoded and made smaller once, and kept for all epochs and runs.

What a model sees depends on ``Preparation`` alone. It is exactly the same with and without a store.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from pskd.errors import PskdError
from pskd.workbench.data.image_data import ImageData
from pskd.workbench.data.loading import make_in_workers
from pskd.workbench.data.pictures import Box, Picture, Resizing, as_array, as_image, resize
from pskd.workbench.data.splits import InMemory, OpenedSplit, Split
from pskd.workbench.data.store import NewImages, Store, StoredImage, check_space
from pskd.workbench.data.view import Source, View, cut_centre, middle_of, pixels, scale_of, scale_size
from pskd.workbench.space import format_bytes

AUTO = "auto"
VERSION = 1  # of what is kept; another one has another folder
BATCH = 32  # images that a worker decodes at a time
LOOKED_AT = 64  # images whose size is read before the disk is filled


class Scaling(IntEnum):
    """How an image was scaled before it was kept."""

    NONE = 0  # it is as it was decoded
    AS_EVALUATED = 1  # as evaluation does, which then only cuts out the centre
    SMALLER = 2  # otherwise


@dataclass(frozen=True)
class Preparation:
    """What happens to an image before crops are taken of it.

    Args:
        side: pixels of the shorter side that larger images are scaled to; None: all stay as they are.
        resizing: what scales crops to the model's input. torch is several times as fast as Pillow, its values differ by
            a few of 255.
    """

    side: int | None = None
    resizing: Resizing = "pillow"

    def prepare(self, image: Image.Image, view: View) -> StoredImage:
        """A decoded image as it is kept."""
        size, scaling = self.plan(image.size, view)
        image = image if scaling is Scaling.NONE else image.resize(size, Image.Resampling.BILINEAR)
        return StoredImage(as_array(image), scaling)

    def plan(self, size: tuple[int, int], view: View) -> tuple[tuple[int, int], Scaling]:
        """To what width and height an image of this width and height is scaled, and how."""
        if self.side is None or min(size) <= self.side:
            return size, Scaling.NONE
        scale = scale_of(size, view.size, view.resize)
        if middle_of(size, view.size, scale) is not None:  # a panorama, of which evaluation scales a part only
            return size, Scaling.NONE
        if scale_size(size, scale)[size.index(min(size))] == self.side:
            return scale_size(size, scale, view.size), Scaling.AS_EVALUATED
        return scale_size(size, self.side / min(size)), Scaling.SMALLER


class Kept(Picture):
    """An image whose pixels are in memory, or in a mapped file."""

    def __init__(self, stored: StoredImage, view: View, resizing: Resizing) -> None:
        self.array, self.kind = stored
        self.view, self.resizing = view, resizing
        self.size = self.array.shape[:2]

    def cut(self, box: Box) -> Tensor:
        top, left, height, width = box
        return resize(self.array[top : top + height, left : left + width], self.view.size, self.resizing)

    def seen(self) -> Tensor:
        if self.kind != Scaling.AS_EVALUATED:
            return pixels(cut_centre(as_image(self.array), self.view.size, self.view.resize))
        (own_height, own_width), (height, width) = self.size, self.view.size
        top, left = round((own_height - height) / 2), round((own_width - width) / 2)
        return torch.from_numpy(self.array[top : top + height, left : left + width]).permute(2, 0, 1).clone()


@dataclass(frozen=True, eq=False)
class Prepared(OpenedSplit):
    """A split whose images are prepared, and perhaps kept.

    Args:
        inner: the split as it is.
        store: where kept images are.
        places: (N) int64, where in the store each image is; -1: it is not there, and prepared in every epoch.
    """

    inner: OpenedSplit
    preparation: Preparation
    store: Store | None = None
    places: np.ndarray | None = None

    def __post_init__(self) -> None:
        whole = self.places is not None and bool((self.places >= 0).all())
        self.__dict__.update(
            together=256 if whole else self.together,  # nothing is decoded
            lasting=self.inner.lasting,
            labels=self.inner.labels,
            view=self.inner.view,
        )

    @property
    def fingerprint(self) -> str:
        return self.inner.fingerprint

    def source(self, index: int) -> Source:
        return self.inner.source(index)

    def subset(self, index: Tensor) -> Prepared:
        places = None if self.places is None else self.places[index.numpy()]
        return Prepared(self.inner.subset(index), self.preparation, self.store, places)

    def kept(self, index: int) -> StoredImage | None:
        if self.store is None or self.places is None or self.places[index] < 0:
            return None
        return self.store[int(self.places[index])]

    def picture(self, index: int) -> Picture:
        image = self.kept(index)
        if image is None:
            picture = Picture(self.inner.source(index), self.view, self.preparation.resizing)
            if self.preparation.side is None:
                return picture
            image = self.preparation.prepare(picture.decode(), self.view)
        return Kept(image, self.view, self.preparation.resizing)

    def pixels(self, index: int) -> Tensor:
        """Exactly the same as without any preparation."""
        image = self.kept(index)
        if image is None or image.kind == Scaling.SMALLER:
            return self.inner.pixels(index)
        return Kept(image, self.view, self.preparation.resizing).seen()


@dataclass(frozen=True)
class Caching:
    """How images are prepared, and where they are kept.

    Args:
        name, root: of the data set, as it was loaded.
        cache: a folder, "auto" for one of this user's, or None: nothing is kept.
        shrink: pixels of the shorter side that images are scaled to before crops are taken; "auto" is what evaluation
            scales them to, unless the model's input is so small that every pixel counts; None: they stay as they are.
        resizing: what scales crops to the model's input.
    """

    name: str
    root: str | None = None
    cache: str | None = None
    shrink: int | Literal["auto"] | None = None
    resizing: Resizing = "pillow"

    def of(self, data: ImageData, workers: int, say: Callable[[str], None]) -> ImageData:
        """The data set for training. Images that are not kept yet are added, by this or another process."""
        asked = {
            "cache": self.cache is not None,
            "shrink": self.shrink is not None,
            "resize": self.resizing != "pillow",
        }
        if not any(asked.values()):
            return data
        splits: dict[str, OpenedSplit] = {}
        for name, split in data.splits.items():
            if isinstance(split, InMemory):
                setting = next(setting for setting, is_set in asked.items() if is_set)
                raise PskdError(f"data.{setting}: the images of '{self.name}' are in memory as they are, leave it out")
            splits[name] = split
        store = None
        if self.cache is not None:
            store = self._store(data.view)
            add_missing(store, list(splits.values()), self._preparation(data.view), workers, say)
        prepared: dict[str, Any] = {name: self._prepare(split, store) for name, split in splits.items()}
        return replace(data, **prepared)

    def seen(self, split: Split) -> Split:
        """A split for evaluation, with the images that are kept already; none is added."""
        if self.cache is None or isinstance(split, InMemory) or not (self.folder(split.view) / "about.json").is_file():
            return split
        return self._prepare(split, self._store(split.view))

    def folder(self, view: View) -> Path:
        """Where images that are prepared in this way are kept: another data set, size or release has another folder."""
        assert self.cache is not None
        if self.cache == AUTO:
            place = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "pskd"
        else:
            place = Path(self.cache).expanduser()
        mark = hashlib.blake2b(repr(sorted(self._about(view).items())).encode(), digest_size=6).hexdigest()
        return place / f"{''.join(c if c.isalnum() else '-' for c in self.name)}-{mark}"

    def _about(self, view: View) -> dict[str, Any]:
        return {
            "version": VERSION,
            "data": self.name,
            "root": None if self.root is None else str(Path(self.root).expanduser().resolve()),
            "channels": view.channels,
            "as_stored": view.as_stored,
            "size": list(view.size),
            "resize": view.resize,
            "side": self._preparation(view).side,
        }

    def _store(self, view: View) -> Store:
        return Store(self.folder(view), self._about(view))

    def _preparation(self, view: View) -> Preparation:
        return Preparation(view.resize if self.shrink == "auto" else self.shrink, self.resizing)

    def _prepare(self, split: OpenedSplit, store: Store | None) -> Prepared:
        places = None if store is None else store.places(keys_of(split))
        return Prepared(split, self._preparation(split.view), store, places)


def add_missing(
    store: Store, splits: Sequence[OpenedSplit], preparation: Preparation, workers: int, say: Callable[[str], None]
) -> None:
    """Add the images of the splits that the store lacks. Of several processes one does it, and the others wait."""
    keys = np.concatenate([keys_of(split) for split in splits])
    if not (store.places(keys) < 0).any():
        return
    with store.adding() as writer:
        _, once = np.unique(keys, axis=0, return_index=True)
        missing = np.sort(once[store.places(keys[once]) < 0])
        if not len(missing):
            return  # another process was faster
        prepare = _Preparing(splits, np.cumsum([len(split) for split in splits]), preparation)
        total = []
        for number in missing[:: -(-len(missing) // LOOKED_AT)]:
            picture = prepare.open(number)
            (width, height), _ = preparation.plan(picture.size[::-1], picture.view)
            total.append(width * height * picture.view.channels)
        needed = float(np.mean(total)) * len(missing)
        what = f"{len(missing):,} images" + (f" of {len(once):,}" if len(missing) < len(once) else "")
        check_space(store.folder, needed, what)
        say(f"data.cache: decoding {what} into {store.folder}, about {format_bytes(needed)}")
        tasks = [missing[start : start + BATCH] for start in range(0, len(missing), BATCH)]
        for numbers, images in zip(tasks, make_in_workers(prepare, tasks, workers), strict=True):
            writer.add(keys[numbers], images)


def keys_of(split: OpenedSplit) -> np.ndarray:
    """What tells an image from all others, and from its earlier versions: (N, 2) uint64."""
    identities = split.identities()
    if identities is None:
        raise PskdError("data.cache: these images may be others each time, only files and hf: data can be kept")
    digests = b"".join(hashlib.blake2b(each, digest_size=16).digest() for each in identities)
    return np.frombuffer(digests, "<u8").reshape(-1, 2)


@dataclass(frozen=True)
class _Preparing:
    """Prepares images of several splits, numbered through; ``ends`` are the splits' last numbers + 1."""

    splits: Sequence[OpenedSplit]
    ends: np.ndarray
    preparation: Preparation

    def open(self, number: int) -> Picture:
        which = int(np.searchsorted(self.ends, number, side="right"))
        split = self.splits[which]
        return Picture(split.source(int(number - self.ends[which] + len(split))), split.view)

    def __call__(self, numbers: np.ndarray) -> NewImages:
        pictures = map(self.open, numbers)
        images = [self.preparation.prepare(picture.decode(), picture.view) for picture in pictures]
        # One tensor, which reaches the main process in shared memory.
        pixels = torch.from_numpy(np.concatenate([image.pixels.reshape(-1) for image in images]))
        return NewImages(pixels, torch.tensor([(*image.pixels.shape[:2], image.kind) for image in images]))
