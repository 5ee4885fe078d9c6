"""Images between a file and a batch: their size is known first, their pixels are made when they are asked for."""

from __future__ import annotations

from abc import ABC, abstractmethod

from PIL import Image
from torch import Tensor

from pskd.data.view import Source, View, centred, converted, opened, pixels, readable

Box = tuple[int, int, int, int]  # top, left, height, width


class Picture(ABC):
    """One image, and the view that decides what a model sees of it."""

    size: tuple[int, int]  # height and width in pixels

    @abstractmethod
    def cut(self, box: Box) -> Tensor:
        """A box of the image, scaled to the view's size: uint8 (C, H, W)."""

    @abstractmethod
    def seen(self) -> Tensor:
        """The image as evaluation sees it: uint8 (C, H, W)."""


class FromSource(Picture):
    """An image that is decoded by Pillow."""

    def __init__(self, source: Source, view: View) -> None:
        self.source, self.view = source, view
        with readable(source):
            self.image = opened(source, view.as_stored)
        self.size = self.image.height, self.image.width

    def decoded(self) -> Image.Image:
        """In its own size, in the view's channels."""
        with readable(self.source):
            return converted(self.image, self.view.channels)

    def cut(self, box: Box) -> Tensor:
        top, left, height, width = box
        part = self.decoded().crop((left, top, left + width, top + height))
        return pixels(part.resize(self.view.size[::-1], Image.Resampling.BILINEAR))

    def seen(self) -> Tensor:
        return pixels(centred(self.decoded(), self.view.size, self.view.resize))
