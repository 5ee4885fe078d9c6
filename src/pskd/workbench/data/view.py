"""How an image, of whatever size and kind, becomes the model's input."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import IO, Any

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from pskd.errors import PskdError
from pskd.tensors import cached_parts, constant, empty
from pskd.workbench.data.jpeg import jpeg_pixels
from pskd.workbench.data.reason import reason
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
        return pixels(centred(decode(source, self.channels, self.as_stored), self.size, self.resize))

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


def centred(image: Image.Image, size: tuple[int, int], resize: int | None) -> Image.Image:
    """The central part of an image at a fixed size: see ``View``."""
    scale = scale_of(image.size, size, resize)
    if (middle := middle_of(image.size, size, scale)) is not None:
        image = image.crop(middle)
    image = image.resize(scaled(image.size, scale, size), Image.Resampling.BILINEAR)
    height, width = size
    left, top = round((image.width - width) / 2), round((image.height - height) / 2)
    return image.crop((left, top, left + width, top + height))


def scale_of(image_size: tuple[int, int], size: tuple[int, int], resize: int | None) -> float:
    """What an image of a width and height is scaled by, before the centre of height and width ``size`` is cut out."""
    scale = max(size[0] / image_size[1], size[1] / image_size[0])
    return scale if resize is None else scale * (resize / max(size))


def scaled(image_size: tuple[int, int], scale: float, at_least: tuple[int, int] = (1, 1)) -> tuple[int, int]:
    """Width and height of a scaled image, at least a height and a width."""
    # The tolerance keeps 341 from becoming 340.99... and then 340.
    return max(at_least[1], int(image_size[0] * scale + 1e-6)), max(at_least[0], int(image_size[1] * scale + 1e-6))


def middle_of(image_size: tuple[int, int], size: tuple[int, int], scale: float) -> tuple[int, int, int, int] | None:
    """A very long image's middle: of 1 x 10,000 pixels little is seen, but scaled up whole it would fill the memory.

    None: it is not that long.
    """
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
    with readable(source):
        return converted(opened(source, as_stored), channels)


def opened(source: Source, as_stored: bool = False) -> Image.Image:
    """An image whose size is known; its pixels are decoded when they are asked for, unless it has to be turned."""
    if isinstance(source, Image.Image):
        return source
    if isinstance(source, (str, os.PathLike)):
        with open_file(source) as file:
            source = io.BytesIO(file.read())  # in one go, and no file stays open until the pixels are wanted
    image = Image.open(source)
    turned = not as_stored and image.getexif().get(ORIENTATION, 1) != 1
    return ImageOps.exif_transpose(image) if turned else image


@contextlib.contextmanager
def readable(source: Source) -> Iterator[None]:
    """What goes wrong with an image file, in one line that names it."""
    try:
        yield
    except Exception as error:  # on damaged files Pillow's decoders raise whatever they stumble over
        why = "it is no image" if isinstance(error, UnidentifiedImageError) else reason(error)
        name = source if isinstance(source, (str, os.PathLike)) else getattr(source, "name", "a stream")
        raise PskdError(f"cannot read image '{os.fspath(name)}' ({why}): repair or remove it") from error


def shorter_side(source: Source) -> int | None:
    """Pixels of an image's shorter side; None where it cannot be read, which the training will say."""
    try:
        with readable(source):
            return min(opened(source, as_stored=True).size)
    except PskdError:
        return None


def converted(image: Image.Image, channels: int) -> Image.Image:
    """A decoded image as 8-bit grey (1) or RGB (3); the very one if it is that already."""
    mode = "L" if channels == 1 else "RGB"
    if image.mode == mode and (found := jpeg_pixels(image)) is not None:
        return Image.fromarray(found)
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
