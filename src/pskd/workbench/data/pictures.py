"""Images between a file and a batch: their size is known first, their pixels are made when they are asked for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from pskd.workbench.data.jpeg import jpeg_pixels
from pskd.workbench.data.view import Source, View, centred, converted, opened, pixels, readable

Box = tuple[int, int, int, int]  # top, left, height, width


Resizing = Literal["pillow", "torch"]


class Picture(ABC):
    """One image, and the view that decides what a model sees of it."""

    size: tuple[int, int]  # height and width in pixels

    @abstractmethod
    def cut(self, box: Box) -> Tensor:
        """A box of the image, scaled to the view's size: uint8 (C, H, W), in memory in any order."""

    @abstractmethod
    def seen(self) -> Tensor:
        """The image as evaluation sees it: uint8 (C, H, W)."""


class FromSource(Picture):
    """An image that is decoded by Pillow."""

    def __init__(self, source: Source, view: View, resizing: Resizing = "pillow") -> None:
        self.source, self.view, self.resizing = source, view, resizing
        with readable(source):
            self.image = opened(source, view.as_stored)
        self.size = self.image.height, self.image.width

    def decoded(self) -> Image.Image:
        """In its own size, in the view's channels."""
        with readable(self.source):
            return converted(self.image, self.view.channels)

    def cut(self, box: Box) -> Tensor:
        top, left, height, width = box
        whole = jpeg_pixels(self.image) if self.view.channels == 3 else None
        if whole is not None:
            found = whole[top : top + height, left : left + width]
            return resized(found if self.resizing == "torch" else as_image(found), self.view.size)
        part = self.decoded().crop((left, top, left + width, top + height))
        return resized(as_array(part) if self.resizing == "torch" else part, self.view.size)

    def seen(self) -> Tensor:
        return pixels(centred(self.decoded(), self.view.size, self.view.resize))


def resized(part: Image.Image | np.ndarray, size: tuple[int, int]) -> Tensor:
    """A box of an image, scaled to ``size``: bilinear, smoothed where it becomes smaller; uint8 (C, H, W).

    By Pillow, or an array (h, w, C) uint8 by torch, which is several times as fast and differs in the last digits.
    """
    if isinstance(part, Image.Image):
        return pixels(part.resize(size[::-1], Image.Resampling.BILINEAR))
    # With its batch dimension first, or torch does not know the pixels' channels to be side by side: twice the time.
    channels_first = torch.from_numpy(part)[None].permute(0, 3, 1, 2)
    return F.interpolate(channels_first, size, mode="bilinear", antialias=True)[0]


def as_array(image: Image.Image) -> np.ndarray:
    """(H, W, C) uint8."""
    array = np.array(image)
    return array[:, :, None] if array.ndim == 2 else array


def as_image(part: np.ndarray) -> Image.Image:
    """A box (h, w, C) uint8 of an image, whose rows may lie apart: copied once, and not by numpy first."""
    height, width, channels = part.shape
    mode, apart = "L" if channels == 1 else "RGB", part.strides[0]
    whole = np.lib.stride_tricks.as_strided(part, ((height - 1) * apart + width * channels,), (1,), writeable=False)
    return Image.frombytes(mode, (width, height), whole.data, "raw", mode, apart, 1)
