from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as tv

from pskd.workbench.augment import colour


def jitter(images: Tensor, uniform: Tensor, strength: float = 0.4, clamp: bool = True) -> Tensor:
    return colour.Jitter(uniform, strength, clamp)(images.clone())


def batch() -> tuple[Tensor, Tensor]:
    """Numbers with all orders of changes, and images."""
    uniform = torch.rand(60, 4)
    uniform[:, 3] = (torch.arange(60) % 6 + 0.5) / 6
    return uniform, torch.randint(0, 256, (60, 3, 9, 7)).float()


@pytest.fixture(autouse=True)
def _same_numbers_every_time():
    torch.manual_seed(0)


def test_jitter_equals_torchvision_with_the_same_factors_and_order():
    changes = (tv.adjust_brightness, tv.adjust_contrast, tv.adjust_saturation)
    uniform, images = batch()
    ours = jitter(images, uniform)
    for number, (image, result) in enumerate(zip(images, ours, strict=True)):
        expected = image / 255
        for change in colour._ORDERS[number % 6]:
            expected = changes[change](expected, 1 + 0.4 * (2 * float(uniform[number, change]) - 1))
        # Our mean grey is one of whole numbers; with 63 pixels that is off by 1/2 of 255 at most.
        assert torch.allclose(result / 255, expected, atol=0.3 / 255)


def test_jitter_without_clamping_is_three_blends():
    """Each with black, the mean grey or the grey image, one after the other; some values leave 0..255."""
    uniform, images = batch()
    ours = jitter(images, uniform, clamp=False)
    for number, (image, result) in enumerate(zip(images.double(), ours, strict=True)):
        for change in colour._ORDERS[number % 6]:
            factor = 1 + 0.4 * (2 * float(uniform[number, change]) - 1)
            grey = 0.299 * image[0] + 0.587 * image[1] + 0.114 * image[2]
            other = (torch.zeros(1), grey.mean(), grey)[change]
            image = factor * image + (1 - factor) * other
        assert torch.allclose(result.double(), image, atol=0.3)
    outside = ((ours < 0) | (ours > 255)).float().mean()
    assert 0.02 < outside < 0.3
    clamped = jitter(images, uniform)
    assert clamped.min() >= 0
    assert clamped.max() <= 255


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("clamp", [True, False])
def test_large_images_changed_one_by_one_come_out_exactly_the_same(monkeypatch, channels: int, clamp: bool):
    images, uniform = torch.rand(24, channels, 19, 23) * 255, torch.rand(24, 4)
    together = jitter(images, uniform, 0.7, clamp)
    monkeypatch.setattr(colour, "ALONE", 19 * 23)
    assert torch.equal(jitter(images, uniform, 0.7, clamp), together)
    parts = colour.Jitter(uniform, 0.7, clamp)
    for part in (slice(20, 24), slice(0, 20)):
        assert torch.equal(parts(images[part].clone(), part), together[part])


def test_jitter_of_no_strength_changes_nothing():
    images = torch.randint(0, 256, (5, 3, 4, 4)).float()
    assert torch.allclose(jitter(images, torch.rand(5, 4), 0.0), images)


def test_jitter_of_grey_images_has_no_saturation():
    images = torch.rand(6, 1, 5, 5) * 255
    uniform = torch.full((6, 4), 0.5)  # factor 1
    uniform[:, 2] = torch.rand(6)
    assert torch.allclose(jitter(images, uniform), images, atol=1e-3)


def test_lighting_has_the_covariance_of_the_principal_colours():
    n = 200_000
    shifts = colour.lighting(torch.zeros(n, 3, 1, 1), torch.rand(n, 6), 0.1).flatten(1).double() / 255
    directions = torch.tensor(colour._COMPONENTS).double() * torch.tensor(colour._DEVIATIONS).double()
    expected = 0.01 * directions @ directions.T
    assert torch.allclose(shifts.T.cov(), expected, atol=4 * float(expected.max()) * (2 / n) ** 0.5)
    assert (shifts.mean(0).abs() < 4 * (expected.diagonal() / n).sqrt()).all()


def test_lighting_shifts_all_pixels_of_an_image_alike():
    images = torch.rand(3, 3, 4, 5) * 255
    shift = colour.lighting(images.clone(), torch.rand(3, 6), 0.1) - images
    assert torch.allclose(shift, shift[:, :, :1, :1].expand_as(shift), atol=1e-3)
