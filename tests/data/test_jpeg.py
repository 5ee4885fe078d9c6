"""simplejpeg's pixels are exactly Pillow's, and Pillow judges what it refuses."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from pskd.errors import PskdError
from pskd.workbench.data import jpeg
from pskd.workbench.data.folder import photo_view
from pskd.workbench.data.pictures import Picture, Resizing, as_array, as_image
from pskd.workbench.data.view import decode

pytest.importorskip("simplejpeg")
KINDS: list[dict[str, Any]] = [
    *({"subsampling": way, "quality": quality} for way in (0, 1, 2) for quality in (20, 75, 98)),
    *({"progressive": True}, {"optimize": True}, {"keep_rgb": True}, {"restart_marker_rows": 1}),
]


def photo(height: int, width: int, mode: str = "RGB", seed: int = 0, **options: Any) -> io.BytesIO:
    """A JPEG file of smooth noise."""
    draw = np.random.default_rng(seed)
    rough = draw.integers(0, 256, (max(1, height // 9), max(1, width // 9), 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(rough).resize((width, height)).convert(mode).save(file, "JPEG", **options)
    return file


def by_pillow(file: io.BytesIO) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(file.getvalue())).convert("RGB"))


@pytest.mark.parametrize("options", KINDS, ids=str)
@pytest.mark.parametrize("size", [(1, 1), (8, 16), (33, 47), (375, 500)], ids=str)
def test_the_pixels_are_those_of_pillow(size: tuple[int, int], options: dict[str, Any]) -> None:
    file = photo(*size, **options)
    array = jpeg.jpeg_pixels(Image.open(file))
    assert array is not None
    np.testing.assert_array_equal(array, by_pillow(file))
    np.testing.assert_array_equal(np.asarray(decode(file, 3)), by_pillow(file))


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_what_is_not_rgb_is_left_to_pillow(mode: str) -> None:
    file = photo(40, 30, mode)
    assert jpeg.jpeg_pixels(Image.open(file)) is None
    np.testing.assert_array_equal(np.asarray(decode(file, 3)), by_pillow(file))


@pytest.mark.parametrize("resizing", ["pillow", "torch"])
def test_crops_and_views_are_the_same_with_and_without(resizing: Resizing, monkeypatch: pytest.MonkeyPatch) -> None:
    view, boxes = photo_view(64), [(0, 0, 180, 250), (7, 11, 90, 101), (150, 200, 30, 50), (3, 5, 1, 1)]

    def made() -> list[torch.Tensor]:
        pictures = [Picture(photo(180, 250, seed=n), view, resizing) for n in range(len(boxes))]
        return [picture.cut(box) for picture, box in zip(pictures, boxes, strict=True)] + [
            Picture(photo(180, 250), view, resizing).seen()
        ]

    fast = made()
    monkeypatch.setattr(jpeg, "_decoder", lambda: None)
    for one, other in zip(fast, made(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize("box", [(0, 0, 40, 30), (3, 5, 20, 11), (39, 29, 1, 1), (7, 0, 1, 30)], ids=str)
def test_boxes_of_arrays_become_images(box: tuple[int, int, int, int], mode: str) -> None:
    top, left, height, width = box
    image = Image.open(photo(40, 30)).convert(mode)
    part = as_array(image)[top : top + height, left : left + width]
    expected = image.crop((left, top, left + width, top + height))
    assert as_image(part).tobytes() == expected.tobytes()
    assert as_image(np.ascontiguousarray(part)).size == expected.size


def test_damaged_files_end_as_they_do_with_pillow() -> None:
    whole, draw = photo(120, 160).getvalue(), np.random.default_rng(0)
    outcomes = {"read": 0, "refused": 0}
    for case in range(60):
        damaged = bytearray(whole)
        if case % 3 == 0:
            damaged = damaged[: draw.integers(len(whole) // 2, len(whole))]
        else:
            damaged[draw.integers(200, len(whole))] = draw.integers(256)
        file = io.BytesIO(damaged)
        try:
            expected = by_pillow(file)
        except OSError:
            outcomes["refused"] += 1
            with pytest.raises(PskdError, match="cannot read image"):
                decode(file, 3)
        else:
            outcomes["read"] += 1
            np.testing.assert_array_equal(np.asarray(decode(file, 3)), expected)
    assert min(outcomes.values()) >= 10


def test_another_decoder_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert jpeg._decoder() is not None
    jpeg._decoder.cache_clear()
    monkeypatch.setattr("simplejpeg.decode_jpeg", lambda data, _: by_pillow(io.BytesIO(data)) ^ 1)
    assert jpeg._decoder() is None
    jpeg._decoder.cache_clear()
