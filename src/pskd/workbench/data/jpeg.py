"""JPEG files by libjpeg-turbo alone where `simplejpeg` is there: Pillow's pixels in two thirds of its time."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable

import numpy as np
from PIL import Image

Decoder = Callable[..., np.ndarray]


def jpeg_pixels(image: Image.Image) -> np.ndarray | None:
    """(H, W, 3) uint8 of a coloured JPEG that was opened from memory and not decoded; None: Pillow has to do it."""
    file = getattr(image, "fp", None)
    if image.format != "JPEG" or image.mode != "RGB" or not isinstance(file, io.BytesIO):
        return None
    if (decoder := _decoder()) is None:
        return None
    try:
        pixels = decoder(file.getbuffer(), "RGB")
    except ValueError:  # damaged: Pillow knows what can be done with it, and what to say
        return None
    return pixels if pixels.shape[:2] == (image.height, image.width) else None


@functools.cache
def _decoder() -> Decoder | None:
    """simplejpeg's; None where it is missing, or where its pixels are not Pillow's, which can be built otherwise."""
    try:
        from simplejpeg import decode_jpeg
    except ImportError:
        return None
    drawn = Image.fromarray(np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)).resize((61, 43))
    for options in ({"subsampling": 0}, {"subsampling": 1}, {"subsampling": 2}, {"progressive": True}):
        file = io.BytesIO()
        drawn.save(file, "JPEG", **options)
        if not np.array_equal(decode_jpeg(file.getvalue(), "RGB"), np.asarray(Image.open(file))):
            return None
    decoder: Decoder = decode_jpeg
    return decoder
