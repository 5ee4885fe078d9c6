"""How an image, of whatever size and kind, becomes the model's input."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import IO, Any

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from pskd.errors import PskdError
from pskd.tensors import constant
from pskd.workbench.buffers import cached_parts, empty
from pskd.workbench.data.jpeg import jpeg_pixels
from pskd.workbench.data.refusing import refusing
from pskd.workbench.reading import open_file

LARGEST_SIDE = 32_768  # pixels of what a model sees
ORIENTATION = 0x0112  # the EXIF tag
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
        """The view that ``to_dict`` described, which may come from a stranger's file."""
        try:
            tuples: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
            view = cls(**tuples)
            sides = (view.channels, *view.size, *([] if view.resize is None else [view.resize]))
            numbers = (*view.mean, *view.std)
            right = (
                all(type(side) is int and 0 < side <= LARGEST_SIDE for side in sides)
                and all(isinstance(number, int | float) and -1e6 < number < 1e6 for number in numbers)
                and all(view.std)
                and len(view.size) == 2
                and view.channels in (1, 3)
                and view.channels == len(view.mean) == len(view.std)
            )
        except TypeError as error:
            raise PskdError(f"this is no description of a view ({error}): {dict(values)}") from error
        if not right:
            raise PskdError(
                f"a view needs two sizes up to {LARGEST_SIDE} pixels, and a mean and a deviation for each of its 1 or 3"
                f" channels: {view}"
            )
        return view

    def open(self, source: Source) -> Tensor:
        """Read an image file as uint8 (C, H, W): scaled and cut out as evaluation sees it."""
        return pixels(cut_centre(decode(source, self.channels, self.as_stored), self.size, self.resize))

    def normalize(self, images: Tensor, out: Tensor | None = None) -> Tensor:
        """Pixels in 0..255 (uint8 or float, (B, C, H, W)) as the model's float32 input on the same device.

        ``out``: where to write it, of the images' shape.
        """
        inputs = empty(images.shape, images.device) if out is None else out
        for part in cached_parts(images):
            self.standardize(inputs[part].copy_(images[part]))
        return inputs

    def standardize(self, images: Tensor) -> Tensor:
        """Normalise float32 pixels in 0..255 (B, C, H, W); **changes ``images``** and returns it."""
        factor = constant(tuple(1 / (255 * std) for std in self.std), torch.float32, images.device)
        shift = tuple(-mean / std for mean, std in zip(self.mean, self.std, strict=True))
        by_channel = constant(shift, torch.float32, images.device)
        return images.mul_(factor.view(-1, 1, 1)).add_(by_channel.view(-1, 1, 1))


def cut_centre(image: Image.Image, size: tuple[int, int], resize: int | None) -> Image.Image:
    """The central part of an image at a fixed size: see ``View``."""
    scale = scale_of(image.size, size, resize)
    if (middle := middle_of(image.size, size, scale)) is not None:
        image = image.crop(middle)
    image = image.resize(scale_size(image.size, scale, size), Image.Resampling.BILINEAR)
    height, width = size
    left, top = round((image.width - width) / 2), round((image.height - height) / 2)
    return image.crop((left, top, left + width, top + height))


def scale_of(image_size: tuple[int, int], size: tuple[int, int], resize: int | None) -> float:
    """The factor that scales an image (width, height), before its centre of ``size`` (height, width) is cut out."""
    scale = max(size[0] / image_size[1], size[1] / image_size[0])
    return scale if resize is None else scale * (resize / max(size))


def scale_size(image_size: tuple[int, int], scale: float, at_least: tuple[int, int] = (1, 1)) -> tuple[int, int]:
    """Width and height of a scaled image, but no less than ``at_least``, a height and a width."""
    # The tolerance keeps 341 from becoming 340.99... and then 340.
    return max(at_least[1], int(image_size[0] * scale + 1e-6)), max(at_least[0], int(image_size[1] * scale + 1e-6))


def middle_of(image_size: tuple[int, int], size: tuple[int, int], scale: float) -> tuple[int, int, int, int] | None:
    """The middle of a very long image, which scaled up whole would fill the memory, as a box; None: it is not long."""
    limit = 4 * max(size) / scale
    if max(image_size) <= limit:
        return None
    width, height = (min(side, int(limit)) for side in image_size)
    left, top = (image_size[0] - width) // 2, (image_size[1] - height) // 2
    return left, top, left + width, top + height


def decode(source: Source, channels: int, as_stored: bool = False) -> Image.Image:
    """Read an image file in its own size as 8-bit grey (1) or RGB (3); of an animation the first frame.

    It is turned upright by its EXIF tag, unless it is wanted ``as_stored``.
    """
    with naming_image(source):
        return convert_image(open_image(source, as_stored), channels)


def open_image(source: Source, as_stored: bool = False) -> Image.Image:
    """An image whose size is known; its pixels are decoded when they are asked for, unless it has to be turned."""
    if isinstance(source, Image.Image):
        return source
    if isinstance(source, (str, os.PathLike)):
        with open_file(source) as file:
            source = io.BytesIO(file.read())  # in one go, and no file stays open until the pixels are wanted
    try:
        image = Image.open(source)
    except UnidentifiedImageError:
        raise ValueError("it is no image") from None
    turned = not as_stored and image.getexif().get(ORIENTATION, 1) != 1
    return ImageOps.exif_transpose(image) if turned else image


def naming_image(source: Source) -> contextlib.AbstractContextManager[None]:
    """Whatever goes wrong with an image becomes one line that names it; Pillow's decoders raise errors of any kind."""
    name = os.fspath(source) if isinstance(source, (str, os.PathLike)) else getattr(source, "name", "a stream")
    return refusing(f"cannot read image '{name}'", "repair or remove it", Exception)


def shorter_side(source: Source) -> int | None:
    """Pixels of an image's shorter side; None where it cannot be read, which the training will report."""
    try:
        with naming_image(source):
            return min(open_image(source, as_stored=True).size)
    except PskdError:
        return None


def convert_image(image: Image.Image, channels: int) -> Image.Image:
    """A decoded image as 8-bit grey (1) or RGB (3); the same object if it is that already."""
    mode = "L" if channels == 1 else "RGB"
    if image.mode == mode and (array := jpeg_pixels(image)) is not None:
        return Image.fromarray(array)
    if image.mode.startswith("I"):  # 16 bits, which convert() would cut off at 255
        return Image.fromarray((np.asarray(image).clip(0, 65535) >> 8).astype(np.uint8)).convert(mode)
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # Pillow warns where a palette's transparency is dropped in one step
    image.load()
    return image if image.mode == mode else image.convert(mode)


def pixels(image: Image.Image) -> Tensor:
    """A grey or RGB image as uint8 (C, H, W)."""
    # Band by band is a third faster than all bytes at once and then in another order.
    return torch.from_numpy(np.stack([np.asarray(band) for band in image.split()]))
