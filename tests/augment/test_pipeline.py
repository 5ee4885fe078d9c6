from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from pskd.errors import PskdError
from pskd.random import uniform
from pskd.workbench.augment import Augment
from pskd.workbench.augment.geometry import ATTEMPTS, random_boxes
from pskd.workbench.data import View
from pskd.workbench.data.pictures import Picture

RGB = View(3, (32, 32), None, (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
RAW = View(3, (32, 32), None, (0.0, 0.0, 0.0), (1 / 255, 1 / 255, 1 / 255))  # normalising changes nothing
SETTINGS = {
    "cifar": {},
    "imagenet": {"crop": "resized", "jitter": 0.4, "lighting": 0.1},
    "everything": {"crop": "pad", "jitter": 0.4, "lighting": 0.1},
    "plain": {"crop": "none", "flip": False},
    "trivial": {"crop": "none", "auto": "trivial", "erase": 0.5},
}


def test_a_random_crop_is_a_part_of_an_image_of_256_pixels_as_it_is():
    pixels = np.random.default_rng(0).integers(0, 256, (256, 256, 3), dtype=np.uint8)
    view = View(3, (224, 224), 256, RGB.mean, RGB.std)
    picture = Picture(Image.fromarray(pixels), view)
    opened = Augment(view, crop="random").open([picture], torch.tensor([7]), seed=0, epoch=1)[0]
    windows = torch.from_numpy(pixels).permute(2, 0, 1).unfold(1, 224, 1).unfold(2, 224, 1)[:, :, :, 0, 0]
    places = (windows == opened[:, None, None, 0, 0]).all(0).nonzero().tolist()
    crops = [torch.from_numpy(pixels[y : y + 224, x : x + 224]).permute(2, 0, 1) for y, x in places]
    assert any(torch.equal(crop, opened) for crop in crops)


def photos(n: int) -> torch.Tensor:
    return torch.randint(0, 256, (n, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def coordinates(n: int) -> torch.Tensor:
    """Images whose pixels say where they are: red the row, green the column, counted from 1 (0 is the border)."""
    places = torch.arange(1, 33, dtype=torch.uint8)
    rows, columns = places[:, None].expand(32, 32), places.expand(32, 32)
    return torch.stack((rows, columns, rows)).expand(n, -1, -1, -1)


def places_of(inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Top, left (0..8) and flip of crops of ``coordinates``, read from their two central pixels."""
    left_pixel, right_pixel = inputs[:, 1, 16, 15], inputs[:, 1, 16, 16]
    flip = right_pixel < left_pixel
    return (inputs[:, 0, 16, 16] - 13).long(), (torch.where(flip, right_pixel, left_pixel) - 12).long(), flip


@pytest.mark.parametrize("name", SETTINGS)
def test_a_sample_comes_out_exactly_the_same_in_any_batch(name: str):
    images, augment = photos(100), Augment(RGB, **SETTINGS[name])
    index = torch.arange(1000, 1100)
    whole = augment(images, index, seed=3, epoch=5)
    assert whole.dtype == torch.float32
    assert whole.shape == images.shape
    order = torch.arange(100).flip(0)
    assert torch.equal(augment(images[order], index[order], seed=3, epoch=5), whole[order])
    for start, stop in ((0, 1), (1, 8), (8, 71), (71, 100)):
        part = augment(images[start:stop], index[start:stop], seed=3, epoch=5)
        assert torch.equal(part, whole[start:stop])


@pytest.mark.parametrize("name", ["cifar", "imagenet", "trivial"])
def test_epochs_and_seeds_differ(name: str):
    images, augment, index = photos(50), Augment(RGB, **SETTINGS[name]), torch.arange(50)
    first = augment(images, index, seed=0, epoch=0)
    for other in (augment(images, index, seed=0, epoch=1), augment(images, index, seed=1, epoch=0)):
        same = (first == other).flatten(1).all(1)
        assert same.sum() <= 3  # a crop and flip out of 162 may come twice


def test_crops_are_uniform_over_all_offsets_and_half_are_flipped():
    n = 81 * 200
    top, left, flip = places_of(Augment(RAW)(coordinates(n), torch.arange(n), seed=0, epoch=0))
    counts = (top * 9 + left).bincount(minlength=81)
    assert len(counts) == 81
    assert abs(((counts - 200) ** 2 / 200).sum() - 80) < 4 * 160**0.5
    assert abs(flip.double().mean() - 0.5) < 4 * 0.5 / n**0.5
    for one, other in ((top, left), (top, flip), (left, flip)):
        assert abs(torch.corrcoef(torch.stack((one, other)).double())[0, 1]) < 4 / n**0.5


def test_the_border_is_black_before_the_normalisation():
    white = torch.full((200, 3, 32, 32), 255, dtype=torch.uint8)
    inputs = Augment(RGB)(white, torch.arange(200), seed=0, epoch=0)
    black, bright = ((value - torch.tensor(RGB.mean)) / torch.tensor(RGB.std) for value in (0.0, 1.0))
    for channel in range(3):
        values = inputs[:, channel].unique()
        assert torch.allclose(values, torch.stack((black[channel], bright[channel])), atol=1e-5)


def test_without_crop_and_flip_only_the_normalisation_is_left():
    images = photos(10)
    plain = Augment(RGB, crop="none", flip=False)(images, torch.arange(10), seed=0, epoch=0)
    assert torch.equal(plain, RGB.normalize(images))


def test_flip_alone_mirrors_half():
    images, index = photos(400), torch.arange(400)
    inputs = Augment(RAW, crop="none")(images, index, seed=0, epoch=0)
    same = (inputs == images).flatten(1).all(1)
    mirrored = (inputs == images.flip(3)).flatten(1).all(1)
    assert (same ^ mirrored).all()
    assert abs(int(mirrored.sum()) - 200) < 40


def test_wrong_settings_are_named():
    with pytest.raises(PskdError, match=r"augment.jitter=1.5 is outside 0..1"):
        Augment(RGB, jitter=1.5)
    with pytest.raises(PskdError, match=r"lighting.*colour"):
        Augment(View(1, (8, 8), None, (0.5,), (0.5,)), lighting=0.1)


@pytest.mark.parametrize("name", SETTINGS)
def test_no_step_waits_for_an_accelerator(name: str):
    """Nothing looks at values on the device: there are none."""
    images = photos(100).to("meta")
    assert Augment(RGB, **SETTINGS[name])(images, torch.arange(100), seed=3, epoch=5).shape == images.shape


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gives_the_same_crops():
    images, index = photos(100), torch.arange(100)
    here = Augment(RGB)(images, index, seed=0, epoch=0)
    assert torch.equal(here, Augment(RGB)(images.cuda(), index.cuda(), seed=0, epoch=0).cpu())


def literal_jitter(image: torch.Tensor, numbers: torch.Tensor, strength: float) -> torch.Tensor:
    """The colours of one image (3, H, W), change by change, without any short cut."""
    orders = [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]
    for change in orders[int(numbers[3] * 6)]:
        factor = 1 + strength * (2 * numbers[change] - 1)
        grey = (image[0] * 0.299 + image[1] * 0.587 + image[2] * 0.114)[None]
        mean = grey.round().sum(dtype=torch.int64) / grey.numel()
        other = (torch.tensor(0.0), mean, grey)[change]
        image = (image * factor + other * (1 - factor)).clamp(0, 255)
    return image


def test_photos_come_out_exactly_as_if_opened_cut_and_coloured_one_by_one():
    """Whatever is done in batches, in parts of them or without copies: this is what it has to be."""
    draw = np.random.default_rng(0)
    images = [Image.fromarray(draw.integers(0, 256, (200 + 9 * n, 300, 3), dtype=np.uint8)) for n in range(9)]
    view, index = View(3, (224, 224), 256, RGB.mean, RGB.std), torch.arange(30, 39)
    augment = Augment(view, crop="resized", jitter=0.4)
    opened = augment.open([Picture(image, view) for image in images], index, seed=1, epoch=2)
    inputs = augment(opened, index, seed=1, epoch=2, opened=True)
    for place, image in enumerate(images):
        own = index[place : place + 1]
        numbers = uniform(own, seed=1, epoch=2, stream="box", draws=2 * ATTEMPTS + 2)
        top, left, height, width = random_boxes(numbers, image.height, image.width)[0].tolist()
        cut = image.crop((left, top, left + width, top + height)).resize((224, 224), Image.Resampling.BILINEAR)
        expected = torch.from_numpy(np.array(cut)).permute(2, 0, 1).float()
        if uniform(own, seed=1, epoch=2, stream="place", draws=3)[0, 2] < 0.5:
            expected = expected.flip(2)
        expected = literal_jitter(expected, uniform(own, seed=1, epoch=2, stream="jitter", draws=4)[0], 0.4)
        factor, shift = (torch.tensor(values)[:, None, None] for values in (
            [1 / (255 * std) for std in view.std], [-mean / std for mean, std in zip(view.mean, view.std, strict=True)]
        ))  # fmt: skip
        assert torch.equal(inputs[place], expected * factor + shift)
