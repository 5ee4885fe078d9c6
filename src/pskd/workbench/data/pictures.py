"""Images between a file and a batch: their size is known first, their pixels are made when they are asked for."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from pskd.workbench.data.jpeg import jpeg_pixels
from pskd.workbench.data.view import Source, View, convert_image, cut_centre, naming_image, open_image, pixels

Box = tuple[int, int, int, int]  # top, left, height, width
Resizing = Literal["pillow", "torch"]


class Picture:
    """One image, and the view that decides what a model sees of it."""

    def __init__(self, source: Source, view: View, resizing: Resizing = "pillow") -> None:
        self.source, self.view, self.resizing = source, view, resizing
        with naming_image(source):
            self.image = open_image(source, view.as_stored)
        self.size = self.image.height, self.image.width

    def decode(self) -> Image.Image:
        """The image in its own size, in the view's channels."""
        with naming_image(self.source):
            return convert_image(self.image, self.view.channels)

    def cut(self, box: Box) -> Tensor:
        """A box of the image, scaled to the view's size: uint8 (C, H, W), in memory in any order."""
        top, left, height, width = box
        whole = jpeg_pixels(self.image) if self.view.channels == 3 else None
        if whole is not None:
            return resize(whole[top : top + height, left : left + width], self.view.size, self.resizing)
        part = self.decode().crop((left, top, left + width, top + height))
        return resize(part, self.view.size, self.resizing)

    def seen(self) -> Tensor:
        """The image as evaluation sees it: uint8 (C, H, W)."""
        return pixels(cut_centre(self.decode(), self.view.size, self.view.resize))


def resize(part: Image.Image | np.ndarray, size: tuple[int, int], resizing: Resizing) -> Tensor:
    """A box (h, w, C) uint8 of an image, scaled to ``size``: bilinear, smoothed where it becomes smaller.

    Returns (C, H, W) uint8. torch is several times as fast as Pillow, and differs in the last digits.
    """
    if resizing == "pillow":
        image = part if isinstance(part, Image.Image) else as_image(part)
        return pixels(image.resize(size[::-1], Image.Resampling.BILINEAR))
    array = as_array(part) if isinstance(part, Image.Image) else part
    # With its batch dimension first, or torch does not know the pixels' channels to be side by side: twice the time.
    channels_first = torch.from_numpy(array)[None].permute(0, 3, 1, 2)
    return F.interpolate(channels_first, size, mode="bilinear", antialias=True)[0]


def as_array(image: Image.Image) -> np.ndarray:
    """(H, W, C) uint8."""
    array = np.array(image)
    return array[:, :, None] if array.ndim == 2 else array


def as_image(part: np.ndarray) -> Image.Image:
    """A box (h, w, C) uint8 of an image, whose rows may lie apart: copied once, by Pillow alone."""
    height, width, channels = part.shape
    mode, apart = "L" if channels == 1 else "RGB", part.strides[0]
    whole = np.lib.stride_tricks.as_strided(part, ((height - 1) * apart + width * channels,), (1,), writeable=False)
    return Image.frombytes(mode, (width, height), whole.data, "raw", mode, apart, 1)
