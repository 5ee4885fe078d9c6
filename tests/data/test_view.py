from __future__ import annotations

import io
import json
import os
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from pskd.errors import PskdError
from pskd.workbench.data import View
from pskd.workbench.data.pictures import Picture
from pskd.workbench.data.view import shorter_side

PHOTO = View(3, (224, 224), 256, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
SMALL = View(3, (32, 32), None, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
GREY = View(1, (8, 8), None, (0.3,), (0.4,))


def picture(width: int, height: int) -> Image.Image:
    """A smooth colour gradient with some texture, so that scaling and cropping can be told apart."""
    y, x = np.mgrid[0:height, 0:width]
    channels = 255 * x / max(width - 1, 1), 255 * y / max(height - 1, 1), (x * 7 + y * 13) % 256
    return Image.fromarray(np.stack(channels, axis=-1).astype(np.uint8))


@pytest.mark.parametrize("size", [(500, 375), (375, 500), (256, 256), (300, 1000), (97, 61), (1, 1), (641, 480)])
def test_open_is_what_torchvision_evaluates(tmp_path: Path, size: tuple[int, int]):
    picture(*size).save(tmp_path / "a.png")
    expected = v2.Compose([v2.Resize(256), v2.CenterCrop(224), v2.PILToTensor()])(picture(*size))
    assert torch.equal(PHOTO.open(tmp_path / "a.png"), expected)


@pytest.mark.parametrize("view", [PHOTO, SMALL, GREY])
@pytest.mark.parametrize("size", [(1, 20_000), (20_000, 1), (3, 2)])
def test_slivers_become_the_right_size_without_filling_the_memory(view: View, size: tuple[int, int]):
    file = io.BytesIO()
    picture(*size).save(file, "png")
    pixels = view.open(file)
    assert pixels.shape == (view.channels, *view.size)
    assert pixels.dtype == torch.uint8


def test_an_image_of_the_right_size_is_taken_as_it_is():
    for view in (SMALL, View(3, (20, 60), None, SMALL.mean, SMALL.std)):
        height, width = view.size
        file = io.BytesIO()
        picture(width, height).save(file, "png")
        assert torch.equal(view.open(file), torch.from_numpy(np.array(picture(width, height))).permute(2, 0, 1))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "I", "I;16", "F"])
@pytest.mark.parametrize("view", [SMALL, GREY])
def test_every_mode_is_converted(tmp_path: Path, view: View, mode: str):
    path = tmp_path / "a.tif"
    source = picture(40, 40)
    if mode.startswith("I"):
        depth = np.uint16 if mode == "I;16" else np.int32
        Image.fromarray(np.asarray(source.convert("L")).astype(depth) * 257).save(path)
    elif mode == "PA":
        path = tmp_path / "a.png"
        source.convert("P").save(path, transparency=bytes(range(256)))
    else:
        source.convert(mode).save(path)
    with Image.open(path) as stored:
        if mode == "YCbCr" and stored.mode == "RGB":
            pytest.skip("Pillow before 13 cannot read such a TIFF of its own")
        assert stored.mode == ("P" if mode == "PA" else mode)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pixels = view.open(path).float()
    expected = view.open(_png(source)).float()
    tolerance = 100 if mode == "1" else 40 if mode in ("P", "PA") else 6  # dithering; a palette's few colours
    if mode in ("L", "LA", "I", "I;16", "F", "1"):
        expected = view.open(_png(source.convert("L"))).float()
    assert (pixels - expected).abs().mean() < tolerance
    assert pixels.std() > 20


def test_sixteen_bit_grey_uses_the_whole_range(tmp_path: Path):
    Image.fromarray(np.full((8, 8), 40_000, np.uint16)).save(tmp_path / "a.png")
    assert GREY.open(tmp_path / "a.png").unique().tolist() == [40_000 >> 8]


def test_of_an_animation_the_first_frame_is_taken(tmp_path: Path):
    frames = [Image.new("RGB", (32, 32), colour) for colour in ("red", "blue")]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert SMALL.open(tmp_path / "a.gif")[:, 0, 0].tolist() == [255, 0, 0]


def test_a_camera_rotation_is_undone_unless_images_are_wanted_as_stored(tmp_path: Path):
    upright = Image.new("RGB", (32, 32), "black")
    upright.paste("white", (0, 0, 32, 16))  # the upper half
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera stored it turned left by 90 degrees
    upright.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "a.png", exif=exif)
    pixels = SMALL.open(tmp_path / "a.png")
    assert (pixels[:, :16] == 255).all()
    assert (pixels[:, 16:] == 0).all()
    stored = replace(SMALL, as_stored=True).open(tmp_path / "a.png")
    assert (stored[:, :, :16] == 255).all()
    assert (stored[:, :, 16:] == 0).all()


def test_broken_images_are_named_in_one_line(tmp_path: Path):
    whole = tmp_path / "whole.jpg"
    picture(64, 64).save(whole)
    (tmp_path / "cut.jpg").write_bytes(whole.read_bytes()[:700])
    (tmp_path / "text.png").write_text("no image")
    (tmp_path / "empty.png").touch()
    (tmp_path / "folder.png").mkdir()
    damaged = bytearray(_png(picture(64, 64)).getvalue())
    damaged[60:80] = bytes(20)
    (tmp_path / "damaged.png").write_bytes(damaged)
    for name in ("cut.jpg", "text.png", "empty.png", "folder.png", "damaged.png", "missing.png"):
        with pytest.raises(PskdError, match=name) as caught:
            SMALL.open(tmp_path / name)
        assert "\n" not in str(caught.value)
    with pytest.raises(PskdError, match=r"image 'a stream' \(it is no image\)"):
        SMALL.open(io.BytesIO(b"no image"))
    with tempfile.TemporaryFile() as file, pytest.raises(PskdError, match=rf"cannot read image '{file.name}'"):
        SMALL.open(file)  # its name is a number


def test_cut_is_torchvisions_resized_crop():
    image = picture(100, 80)
    expected = v2.functional.resized_crop(image, 10, 20, 50, 60, [32, 32])
    pixels = Picture(image, SMALL).cut((10, 20, 50, 60))
    assert torch.equal(pixels, v2.functional.pil_to_tensor(expected))


def test_normalize_is_torchvisions():
    images = torch.randint(0, 256, (5, 3, 32, 32), dtype=torch.uint8)
    expected = v2.functional.normalize(images / 255, PHOTO.mean, PHOTO.std)
    assert torch.allclose(PHOTO.normalize(images), expected, atol=1e-6)
    pixels = images.float()
    assert torch.equal(PHOTO.normalize(pixels), PHOTO.normalize(images))
    assert torch.equal(pixels, images.float()), "the input was changed"


@pytest.mark.parametrize("view", [PHOTO, SMALL, GREY])
def test_a_view_survives_json(view: View):
    assert View.from_dict(json.loads(json.dumps(view.to_dict()))) == view


@pytest.mark.parametrize(
    "change",
    [
        {"size": [32]},
        {"size": 32},
        {"size": [32, 10**9]},
        {"resize": "32"},
        {"mean": [0.5]},
        {"mean": [0.5, 0.5, float("nan")]},
        {"std": [0.5, 0.5, 0]},
        {"channels": 4},
        {"channels": 3.0},
        {"colour": 1},
    ],
)
def test_a_wrong_description_is_refused(change: dict):
    with pytest.raises(PskdError, match="view"):
        View.from_dict(SMALL.to_dict() | change)


def _png(image: Image.Image) -> io.BytesIO:
    file = io.BytesIO()
    image.save(file, "png")
    return file


def test_the_size_of_what_cannot_be_read_is_not_known(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe.png")  # which nobody will ever write to
    (tmp_path / "text.png").write_text("no image")
    Image.new("RGB", (40, 30)).save(tmp_path / "a.png")
    assert [shorter_side(tmp_path / name) for name in ("pipe.png", "text.png", "a.png")] == [None, None, 30]
