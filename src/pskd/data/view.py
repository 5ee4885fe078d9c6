"""How an image, of whatever size and kind, becomes the model's input."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import IO, Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from pskd.data.reason import reason
from pskd.errors import PskdError
from pskd.reading import check_file
from pskd.tensors import constant

LARGEST_SIDE = 32_768  # pixels of what a model sees
Source = str | os.PathLike[str] | IO[bytes] | Image.Image


@dataclass(frozen=True)
class View:
    """The central part of an image at a fixed size, and its normalisation. It is saved with a model's weights.

    Args:
        channels: 1 (grey) or 3 (RGB).
        size: height and width in pixels.
        resize: what the shorter side is scaled to before the centre of ``size`` is cut out; None: the longer of
            ``size``, so that nothing is lost of a square image.
        mean, std: per channel, for pixels in 0..1.
        as_stored: leave a photo lying on its side as its camera stored it, and do not turn it by its EXIF tag.
    """

    channels: int
    size: tuple[int, int]
    resize: int | None
    mean: tuple[float, ...]
    std: tuple[float, ...]
    as_stored: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Numbers and lists only, for JSON."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> View:
        """The view that ``to_dict`` described."""
        try:
            tuples: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
            view = cls(**tuples)
        except TypeError as error:
            raise PskdError(f"this is no description of a view ({error}): {dict(values)}") from error
        if not isinstance(view.size, tuple) or not isinstance(view.mean, tuple) or not isinstance(view.std, tuple):
            raise PskdError(f"a view needs lists of sizes, means and deviations: {view}")
        whole = (view.channels, *view.size, *([] if view.resize is None else [view.resize]))
        if not all(isinstance(side, int) and 0 < side <= LARGEST_SIDE for side in whole) or not all(
            isinstance(value, int | float) and -1e6 < value < 1e6 for value in (*view.mean, *view.std)
        ):
            raise PskdError(f"a view needs sizes up to {LARGEST_SIDE} pixels, and numbers as means: {view}")
        if (
            not all(view.std)
            or len(view.size) != 2
            or not view.channels == len(view.mean) == len(view.std)
            or view.channels not in (1, 3)
        ):
            raise PskdError(f"a view needs two sizes and, for 1 or 3 channels, as many means and deviations: {view}")
        return view

    def open(self, source: Source) -> Tensor:
        """Read an image file as uint8 (C, H, W): scaled and cut out as evaluation sees it."""
        return pixels(centred(self.decode(source), self.size, self.resize))

    def decode(self, source: Source) -> Image.Image:
        """Read an image file in its own size, in this view's channels."""
        return decode(source, self.channels, self.as_stored)

    def cut(self, image: Image.Image, box: tuple[int, int, int, int]) -> Tensor:
        """A box (left, top, right, bottom) of a decoded image, scaled to the view's size: uint8 (C, H, W)."""
        return pixels(image.crop(box).resize(self.size[::-1], Image.Resampling.BILINEAR))

    def normalize(self, images: Tensor) -> Tensor:
        """Pixels in 0..255 (uint8 or float, (B, C, H, W)) as the model's float32 input on the same device."""
        factor = tuple(1 / (255 * std) for std in self.std)
        shift = tuple(-mean / std for mean, std in zip(self.mean, self.std, strict=True))
        shape = (self.channels, 1, 1)
        inputs = images.to(torch.float32, copy=True)
        inputs *= constant(factor, torch.float32, images.device).view(shape)
        inputs += constant(shift, torch.float32, images.device).view(shape)
        return inputs


def centred(image: Image.Image, size: tuple[int, int], resize: int | None) -> Image.Image:
    """The central part of an image at a fixed size: see ``View``."""
    height, width = size
    scale = max(height / image.height, width / image.width)
    if resize is not None:
        scale *= resize / max(size)
    image = _middle(image, limit=4 * max(size) / scale)
    # The tolerance keeps 341 from becoming 340.99... and then 340.
    scaled = max(width, int(image.width * scale + 1e-6)), max(height, int(image.height * scale + 1e-6))
    image = image.resize(scaled, Image.Resampling.BILINEAR)
    left, top = round((image.width - width) / 2), round((image.height - height) / 2)
    return image.crop((left, top, left + width, top + height))


def decode(source: Source, channels: int, as_stored: bool = False) -> Image.Image:
    """Read an image file in its own size as 8-bit grey (1) or RGB (3); of an animation the first frame.

    It is turned upright by its EXIF tag, unless it is wanted ``as_stored``.
    """
    mode = "L" if channels == 1 else "RGB"
    if isinstance(source, Image.Image):
        return _convert(source, mode)
    try:
        if isinstance(source, (str, os.PathLike)):
            check_file(source)
        with Image.open(source) as image:
            return _convert(image if as_stored else ImageOps.exif_transpose(image), mode)
    except Exception as error:  # on damaged files Pillow's decoders raise whatever they stumble over
        name = source if isinstance(source, (str, os.PathLike)) else getattr(source, "name", "a stream")
        raise PskdError(f"cannot read image '{os.fspath(name)}' ({reason(error)}): repair or remove it") from error


def shorter_side(source: Source) -> int | None:
    """Pixels of an image's shorter side; None where it cannot be read, which the training will say."""
    if isinstance(source, Image.Image):
        return min(source.size)
    try:
        if isinstance(source, (str, os.PathLike)):
            check_file(source)
        with Image.open(source) as image:
            return min(image.size)
    except Exception:  # as above
        return None


def _middle(image: Image.Image, limit: float) -> Image.Image:
    """A very long image's middle: of 1 x 10,000 pixels little is seen, but scaled up whole it would fill the memory."""
    if max(image.size) <= limit:
        return image
    width, height = (min(side, int(limit)) for side in image.size)
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return image.crop((left, top, left + width, top + height))


def _convert(image: Image.Image, mode: str) -> Image.Image:
    if image.mode.startswith("I"):  # 16 bits, which convert() would cut off at 255
        return Image.fromarray((np.asarray(image).clip(0, 65535) >> 8).astype(np.uint8)).convert(mode)
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # Pillow warns where a palette's transparency is dropped in one step
    return image.convert(mode)


def pixels(image: Image.Image) -> Tensor:
    """A grey or RGB image as uint8 (C, H, W)."""
    values = torch.from_numpy(np.array(image))
    return values[None] if values.ndim == 2 else values.permute(2, 0, 1).contiguous()
