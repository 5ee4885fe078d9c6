from __future__ import annotations

import torch
from torchvision.transforms import v2

from pskd.workbench.augment.erasing import erase
from pskd.workbench.augment.trivial import BINS, SIGNED, UNSIGNED, draw


def photos(count: int, size: int = 32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, generator=generator)


def test_every_operation_is_torchvisions():
    """At three strengths, of either sign."""
    theirs, image = v2.TrivialAugmentWide(), photos(2)
    space = theirs._AUGMENTATION_SPACE
    signed = [name for name, (_, has_sign) in space.items() if has_sign]
    unsigned = [name for name in space if name not in signed]
    known = dict(zip(signed, SIGNED, strict=True)) | dict(zip(unsigned, UNSIGNED, strict=True))
    for name, change in known.items():
        magnitudes = space[name][0](BINS, 32, 32)
        for place in (0, 12, 30):
            for sign in (1, -1) if name in signed else (1,):
                magnitude = 0.0 if magnitudes is None else sign * float(magnitudes[place])
                expected = theirs._apply_image_or_video_transform(
                    image, name, magnitude, v2.InterpolationMode.NEAREST, theirs._fill
                )
                assert (change(image, sign * place / 30).int() - expected.int()).abs().max() <= 1, (name, place, sign)


def test_operations_and_strengths_are_equally_likely():
    kind, place, sign = draw(torch.arange(62_000), seed=0, epoch=0).unbind(1)
    for drawn, choices in ((kind, 14), (place, BINS)):
        expected = 62_000 / choices
        counts = drawn.bincount(minlength=choices).double()
        assert len(counts) == choices
        assert abs(((counts - expected) ** 2 / expected).sum() - (choices - 1)) < 4 * (2 * (choices - 1)) ** 0.5
    assert set(sign.tolist()) == {-1, 1}
    assert abs(sign.double().mean()) < 4 / 62_000**0.5
    for one, other in ((kind, place), (kind, sign), (place, sign)):
        assert abs(torch.corrcoef(torch.stack((one, other)).double())[0, 1]) < 4 / 62_000**0.5


def test_erased_boxes_have_the_authors_areas():
    count = 4000
    erased = erase(torch.ones(count, 3, 32, 32), torch.arange(count), seed=0, epoch=1, probability=0.4) == 0
    assert erased[:, 0].equal(erased[:, 2])
    areas = erased[:, 0].flatten(1).double().mean(1)
    some = areas > 0
    assert abs(some.double().mean() - 0.4) < 4 * (0.24 / count) ** 0.5
    assert areas[some].min() > 0.01
    assert areas[some].max() < 0.37
    assert abs(areas[some].mean() - (0.02 + 1 / 3) / 2) < 0.015
    rows, columns = erased[:, 0].any(2).sum(1), erased[:, 0].any(1).sum(1)
    assert (rows * columns).equal(erased[:, 0].flatten(1).sum(1))  # boxes
