"""Images made smaller once, before crops are taken of them, and kept: so no epoch decodes whole photos again.

What a model sees depends on ``Preparation`` alone. Whether an image comes from a store or is made anew is the same to
the bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from pskd.workbench.data.pictures import Box, FromSource, Picture, Resizing, as_array, as_image, resized
from pskd.workbench.data.splits import Opened
from pskd.workbench.data.store import Entry, Store
from pskd.workbench.data.view import Source, View, centred, middle_of, pixels, scale_of, scaled


class Kind(IntEnum):
    """What was done to an image before it was kept."""

    OWN = 0  # nothing: it is as it was decoded
    AS_EVALUATED = 1  # it was scaled as evaluation does, which only cuts out the centre then
    SMALLER = 2  # it was scaled otherwise


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

    def made(self, image: Image.Image, view: View) -> Entry:
        """A decoded image as it is kept."""
        size, kind = self.size_and_kind(image.size, view)
        image = image if kind is Kind.OWN else image.resize(size, Image.Resampling.BILINEAR)
        return Entry(as_array(image), kind)

    def size_and_kind(self, size: tuple[int, int], view: View) -> tuple[tuple[int, int], Kind]:
        """Width and height of a kept image of this width and height, and what has to be done to it."""
        if self.side is None or min(size) <= self.side:
            return size, Kind.OWN
        scale = scale_of(size, view.size, view.resize)
        if middle_of(size, view.size, scale) is not None:  # a panorama, of which evaluation scales a part only
            return size, Kind.OWN
        if scaled(size, scale)[size.index(min(size))] == self.side:
            return scaled(size, scale, view.size), Kind.AS_EVALUATED
        return scaled(size, self.side / min(size)), Kind.SMALLER


class Kept(Picture):
    """An image whose pixels are in memory, or in a mapped file."""

    def __init__(self, entry: Entry, view: View, resizing: Resizing) -> None:
        self.entry, self.view, self.resizing = entry, view, resizing
        self.size = entry.pixels.shape[:2]

    def cut(self, box: Box) -> Tensor:
        top, left, height, width = box
        part = self.entry.pixels[top : top + height, left : left + width]
        return resized(part if self.resizing == "torch" else as_image(part), self.view.size)

    def seen(self) -> Tensor:
        if self.entry.kind == Kind.AS_EVALUATED:
            height, width = self.view.size
            left, top = (
                round((own - wanted) / 2) for own, wanted in zip(self.size[::-1], (width, height), strict=True)
            )
            return torch.from_numpy(self.entry.pixels[top : top + height, left : left + width]).permute(2, 0, 1).clone()
        return pixels(centred(as_image(self.entry.pixels), self.view.size, self.view.resize))


@dataclass(frozen=True, eq=False)
class Prepared(Opened):
    """A split whose images are prepared, and perhaps kept.

    Args:
        inner: the split as it is.
        store: where kept images are.
        places: (N) int64, where in the store each image is; -1: it is made anew each time.
    """

    inner: Opened
    preparation: Preparation
    store: Store | None = None
    places: np.ndarray | None = None

    def __post_init__(self) -> None:
        if self.places is not None and (self.places >= 0).all():
            object.__setattr__(self, "together", 256)  # nothing is decoded
        object.__setattr__(self, "lasting", self.inner.lasting)
        object.__setattr__(self, "labels", self.inner.labels)
        object.__setattr__(self, "view", self.inner.view)

    @property
    def fingerprint(self) -> str:
        return self.inner.fingerprint

    def source(self, index: int) -> Source:
        return self.inner.source(index)

    def subset(self, index: Tensor) -> Prepared:
        places = None if self.places is None else self.places[index.numpy()]
        return Prepared(self.inner.subset(index), self.preparation, self.store, places)

    def kept(self, index: int) -> Entry | None:
        if self.store is None or self.places is None or self.places[index] < 0:
            return None
        return self.store[int(self.places[index])]

    def picture(self, index: int) -> Picture:
        entry = self.kept(index)
        if entry is None:
            picture = FromSource(self.inner.source(index), self.view, self.preparation.resizing)
            if self.preparation.side is None:
                return picture
            entry = self.preparation.made(picture.decoded(), self.view)
        return Kept(entry, self.view, self.preparation.resizing)

    def pixels(self, index: int) -> Tensor:
        """As without any preparation, to the bit."""
        entry = self.kept(index)
        if entry is None or entry.kind == Kind.SMALLER:
            return self.inner.pixels(index)
        return Kept(entry, self.view, self.preparation.resizing).seen()
