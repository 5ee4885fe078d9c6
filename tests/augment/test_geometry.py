from __future__ import annotations

import pytest
import torch
from torchvision.transforms import RandomResizedCrop
from torchvision.transforms import functional as tv

from pskd.workbench.augment import geometry


@pytest.fixture(autouse=True)
def _same_numbers_every_time():
    torch.manual_seed(0)


@pytest.mark.parametrize(("channels", "height", "width", "pad"), [(3, 32, 32, 4), (1, 8, 10, 1), (3, 5, 3, 6)])
def test_crop_and_mirror_equal_torchvision_at_every_offset(channels: int, height: int, width: int, pad: int):
    offsets = torch.arange(2 * pad + 1)
    places = torch.cartesian_prod(offsets, offsets, torch.arange(2))
    images = torch.randint(0, 256, (len(places), channels, height, width), dtype=torch.uint8)
    top, left, flip = places.unbind(1)
    ours = geometry.mirror(geometry.shifted_crop(images, top, left, pad), flip.bool())
    for image, result, (y, x, mirrored) in zip(images, ours, places.tolist(), strict=True):
        cropped = tv.crop(tv.pad(tv.to_pil_image(image), [pad]), y, x, height, width)
        expected = tv.pil_to_tensor(tv.hflip(cropped) if mirrored else cropped)
        assert torch.equal(result, expected)


def test_shifted_crop_leaves_its_input_alone():
    images = torch.randint(0, 256, (4, 3, 8, 8), dtype=torch.uint8)
    before = images.clone()
    geometry.mirror(
        geometry.shifted_crop(images, torch.zeros(4).long(), torch.zeros(4).long(), 2), torch.ones(4).bool()
    )
    assert torch.equal(images, before)


@pytest.mark.parametrize(("height", "width"), [(256, 256), (375, 500)])
def test_shifted_boxes_are_224_of_256_pixels_at_every_place(height: int, width: int):
    n = 40_000
    top, left, box_height, box_width = geometry.shifted_boxes(torch.rand(n, 22), height, width).unbind(1)
    assert (set(box_height.tolist()), set(box_width.tolist())) == ({round(height * 7 / 8)}, {round(width * 7 / 8)})
    for start, free in ((top, height - round(height * 7 / 8)), (left, width - round(width * 7 / 8))):
        assert (int(start.min()), int(start.max())) == (0, free)
        # A uniform number among 0..free: mean and variance within five standard errors.
        variance = ((free + 1) ** 2 - 1) / 12
        assert abs(float(start.double().mean()) - free / 2) < 5 * (variance / n) ** 0.5
        assert float(start.double().var()) == pytest.approx(variance, rel=5 * (0.8 / n) ** 0.5)
    assert abs(float(torch.corrcoef(torch.stack((top, left)).double())[0, 1])) < 5 / n**0.5


@pytest.mark.parametrize(("height", "width"), [(32, 32), (375, 500), (64, 200)])
def test_boxes_are_distributed_as_torchvisions(height: int, width: int):
    n = 4000
    boxes = geometry.random_boxes(torch.rand(n, 2 * geometry.ATTEMPTS + 2), height, width).double()
    top, left, box_height, box_width = boxes.unbind(1)
    assert (boxes >= 0).all()
    assert (box_height > 0).all()
    assert (box_width > 0).all()
    assert (top + box_height <= height).all()
    assert (left + box_width <= width).all()

    image = torch.empty(3, height, width)
    theirs = torch.tensor(
        [RandomResizedCrop.get_params(image, list(geometry.AREA), list(geometry.RATIO)) for _ in range(n)]
    ).double()
    error = (boxes.var(0) / n + theirs.var(0) / n).sqrt()
    assert ((boxes.mean(0) - theirs.mean(0)).abs() < 4 * error + 1e-9).all()
    assert torch.allclose(boxes.std(0), theirs.std(0), rtol=0.08)


@pytest.mark.parametrize(
    ("height", "width", "expected"), [(10, 1000, [0, 493, 10, 13]), (900, 9, [444, 0, 12, 9]), (1, 1, [0, 0, 1, 1])]
)
def test_a_box_that_never_fits_becomes_the_central_one(height: int, width: int, expected: list[int]):
    uniform = torch.full((2, 2 * geometry.ATTEMPTS + 2), 0.999)  # the whole area, wide: fits no long strip
    assert geometry.random_boxes(uniform, height, width).tolist() == [expected, expected]


def test_resized_crop_equals_torchvision():
    images = torch.randint(0, 256, (50, 3, 24, 32), dtype=torch.uint8)
    boxes = geometry.random_boxes(torch.rand(50, 2 * geometry.ATTEMPTS + 2), 24, 32)
    boxes[0] = torch.tensor([0, 0, 24, 32])
    boxes[1] = torch.tensor([23, 31, 1, 1])
    ours = geometry.resized_crop(images, boxes)
    for image, box, result in zip(images, boxes.tolist(), ours, strict=True):
        expected = tv.resized_crop(image.float(), *box, [24, 32], antialias=False)
        assert torch.allclose(result, expected, atol=0.01)  # of 255
