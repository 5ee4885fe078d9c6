"""Cutout, CutMix and Mixup: what they do to each pixel, and by statistics over many draws how they choose."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pskd.random import shuffled
from pskd.workbench.augment.mix import Mix, half, whole_batch
from pskd.workbench.augment.mixup import symmetric_beta

draw = {"seed": 3, "epoch": 7}
B = 20_000
INDEX = torch.arange(B) * 5 + 2

# The distribution functions of Beta(p, p) that have a closed form.
BETA_CDF: dict[float, Callable[[float], float]] = {
    0.5: lambda x: 2 / math.pi * math.asin(math.sqrt(x)),
    1.0: lambda x: x,
    2.0: lambda x: 3 * x**2 - 2 * x**3,
}

CUTOUT = Mix("cutout", shares=False, hole=3)
CUTMIX, MIXUP = Mix("cutmix", shares=False, probability=1.0), Mix("mixup", shares=False)
every_mix = pytest.mark.parametrize("mix", [CUTOUT, CUTMIX, MIXUP], ids=lambda mix: mix.name)


def photos(count: int = 64) -> Tensor:
    return torch.randn(count, 3, 9, 12, generator=torch.Generator().manual_seed(0))


def numbered(count: int, height: int, width: int) -> Tensor:
    """Images whose every value tells the image (and channel) that it comes from."""
    return torch.arange(2.0 * count).reshape(count, 2, 1, 1).repeat(1, 1, height, width)


def assert_shares(counts: Tensor, probabilities: Tensor) -> None:
    """Counted shares lie within five standard deviations of their probabilities."""
    total = counts.sum()
    deviation = (probabilities * (1 - probabilities) / total).sqrt()
    assert ((counts / total - probabilities).abs() <= 5 * deviation + 1e-12).all()


def mixed(mix: Mix, images: Tensor, **where: int) -> Tensor:
    return mix(images, INDEX[: len(images)], INDEX[: len(images)], **(draw | where)).images


@every_mix
def test_is_a_pure_function_of_seed_epoch_and_sample(mix: Mix) -> None:
    first = mixed(mix, photos())
    assert torch.equal(mixed(mix, photos()), first)
    for other in ({"seed": 4}, {"epoch": 8}):
        assert not torch.equal(mixed(mix, photos(), **other), first)
    if mix is CUTOUT:  # the others' partners depend on the batch
        order = torch.randperm(64, generator=torch.Generator().manual_seed(1))
        index = INDEX[:64][order]
        assert torch.equal(mix(photos()[order], index, index, **draw).images, first[order])


@every_mix
def test_changes_the_batch_in_place_and_keeps_its_memory_format(mix: Mix) -> None:
    plain, channels_last = photos(), photos().contiguous(memory_format=torch.channels_last)
    assert mixed(mix, plain) is plain
    assert mixed(mix, channels_last) is channels_last
    assert plain.is_contiguous()
    assert channels_last.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(plain, channels_last)
    part = torch.zeros(64, 3, 11, 12)[:, :, 1:-1].copy_(photos())  # contiguous in no format
    assert torch.equal(mixed(mix, part), plain)


@every_mix
def test_shared_with_a_method_half_of_the_images_change_and_the_others_are_distilled(mix: Mix) -> None:
    images, targets, distilled = replace(mix, shares=True)(photos(), INDEX[:64], INDEX[:64], **draw)
    assert distilled is not None
    assert torch.equal(distilled, ~half(INDEX[:64], **draw))
    assert 16 < distilled.sum() < 48
    everyone = mixed(mix, photos())
    assert torch.equal(images, torch.where(distilled[:, None, None, None], photos(), everyone))
    assert (everyone != photos()).flatten(1).any(1).float().mean() > 0.9
    if isinstance(targets, tuple):
        lam = targets[2]
        assert (lam[distilled] == 1).all()
        assert (lam[~distilled] < 1).float().mean() > 0.9


@every_mix
def test_half_precision(mix: Mix) -> None:
    images = photos().bfloat16()
    expected = mixed(mix, images.float())
    torch.testing.assert_close(mixed(mix, images), expected.bfloat16(), rtol=0.02, atol=0.02)


class TestCutout:
    @pytest.mark.parametrize("hole", [4, 5])
    def test_the_centre_is_uniform_and_the_square_is_clipped(self, hole: int) -> None:
        height, width = 9, 7
        images = mixed(replace(CUTOUT, hole=hole), torch.ones(B, 2, height, width))
        assert torch.equal(images[:, 0], images[:, 1])
        empty = images[:, 0] == 0
        rows, columns = empty.any(2), empty.any(1)
        assert torch.equal(empty, rows[:, :, None] & columns[:, None, :])

        def bands(size: int) -> list[list[bool]]:
            """What a hole covers, for each centre."""
            starts = [centre - hole // 2 for centre in range(size)]
            return [[start <= place < start + hole for place in range(size)] for start in starts]

        # Every centre gives another clipped square, so squares can be counted as centres.
        y = (rows[:, None] == torch.tensor(bands(height))).all(2).double()
        x = (columns[:, None] == torch.tensor(bands(width))).all(2).double()
        assert (y.sum(1) == 1).all()
        assert (x.sum(1) == 1).all()
        assert_shares(y.T @ x, torch.full((height, width), 1 / (height * width)))

    def test_the_rest_of_the_image_stays(self) -> None:
        images = mixed(replace(CUTOUT, hole=8), photos())
        assert torch.equal(torch.where(images == 0, 0, photos()), images)


class TestCutMix:
    def test_lam_is_the_exact_share_of_own_pixels_and_the_rest_is_the_partner(self) -> None:
        count, height, width = 500, 8, 5
        before = numbered(count, height, width)
        images, (own, other, lam), _ = CUTMIX(before.clone(), torch.arange(count), INDEX[:count], **draw)
        assert torch.equal(own, torch.arange(count))
        assert torch.equal(other.sort().values, own)
        pasted = (images != before)[:, 0]
        assert torch.equal(images, torch.where(pasted[:, None], before[other], before))
        rows, columns = pasted.any(2), pasted.any(1)
        assert torch.equal(pasted, rows[:, :, None] & columns[:, None, :])
        mixed = own != other  # with itself an image stays as it is
        assert torch.equal(lam[mixed], (height * width - pasted.sum((1, 2)))[mixed] / (height * width))

    @pytest.mark.parametrize("exact", [True, False])
    @pytest.mark.parametrize("beta", BETA_CDF)
    def test_areas_have_the_published_distribution(self, beta: float, exact: bool) -> None:
        height, width = 8, 5
        pixels = height * width
        mix = replace(CUTMIX, beta=beta, box="exact" if exact else "released")
        _, (_, _, lam), _ = mix(torch.zeros(B, 1, height, width), INDEX, INDEX, **draw)
        counts = torch.bincount(((1 - lam) * pixels).round().long(), minlength=pixels + 1)

        def covered(side: int, size: int) -> list[int]:
            """How many of ``side`` places, or from c - side // 2 to c + side // 2, lie in the image, for each c."""
            starts = [centre - side // 2 for centre in range(size)]
            length = side if exact else 2 * (side // 2)
            return [min(start + length, size) - max(start, 0) for start in starts]

        # The box's sides are int(height * cut) and int(width * cut): they change at these values of cut.
        cuts = sorted({i / height for i in range(height + 1)} | {i / width for i in range(width + 1)})
        expected = torch.zeros(pixels + 1, dtype=torch.float64)
        for low, high in itertools.pairwise(cuts):
            probability = BETA_CDF[beta](1 - low**2) - BETA_CDF[beta](1 - high**2)  # lam = 1 - cut^2
            middle = (low + high) / 2
            for rows in covered(int(height * middle), height):
                for columns in covered(int(width * middle), width):
                    expected[rows * columns] += probability / pixels
        assert_shares(counts, expected)

    @pytest.mark.parametrize(("exact", "expected"), [(True, 0.310), (False, 0.299)])
    def test_the_mean_area_at_32_pixels(self, exact: bool, expected: float) -> None:
        mix = replace(CUTMIX, box="exact" if exact else "released")
        images = torch.zeros(B, 1, 32, 32)
        own = [mix(images, INDEX, INDEX, seed=3, epoch=epoch).targets[2] for epoch in range(6)]
        pasted = 1 - torch.cat(own).double()
        assert float(pasted.mean()) == pytest.approx(expected, abs=5e-4 + 4 * float(pasted.std()) / len(pasted) ** 0.5)
        assert len(pasted) == 120_000


class TestMixup:
    def test_images_are_convex_combinations(self) -> None:
        before = photos()
        images, (own, other, lam), _ = MIXUP(before.clone(), torch.arange(64), INDEX[:64], **draw)
        assert torch.equal(other.sort().values, own)
        assert lam.min() >= 0
        assert lam.max() <= 1
        share = lam[:, None, None, None]
        torch.testing.assert_close(images, share * before + (1 - share) * before[other])
        low, high = torch.minimum(before, before[other]), torch.maximum(before, before[other])
        assert ((images >= low) & (images <= high)).all()

    @pytest.mark.parametrize("alpha", BETA_CDF)
    def test_lam_has_the_published_distribution(self, alpha: float) -> None:
        _, (_, _, lam), _ = replace(MIXUP, beta=alpha)(torch.zeros(B, 1, 1, 1), INDEX, INDEX, **draw)
        expected = torch.tensor([BETA_CDF[alpha](x) for x in lam.sort().values.tolist()])
        distance = (expected - (torch.arange(B) + 0.5) / B).abs().max()
        assert distance < 1.95 / B**0.5  # Kolmogorov and Smirnov's, exceeded once in a thousand


@pytest.mark.parametrize("parameter", [0.05, 0.2, 0.5, 0.9, 1.5, 5.0, 40.0])
def test_symmetric_beta_has_the_right_moments(parameter: float) -> None:
    """Variance 1 / (4 (2p + 1)), kurtosis by its formula, on an even grid of numbers: no randomness left."""
    x = symmetric_beta((torch.arange(2**16) + 0.5) / 2**16, parameter).double() - 0.5
    variance = 1 / (4 * (2 * parameter + 1))
    kurtosis = 3 - 6 / (2 * parameter + 3)
    assert float(x.mean()) == pytest.approx(0, abs=1e-6)
    assert float((x**2).mean()) == pytest.approx(variance, rel=2e-3)
    assert float((x**4).mean()) == pytest.approx(kurtosis * variance**2, rel=5e-3)
    assert (x.diff() >= 0).all()


def test_symmetric_beta_at_the_ends() -> None:
    ends = torch.tensor([0.0, 2.0**-24, 0.5, 1 - 2.0**-24])
    for parameter in (0.2, 1.0, 3.0, 60.0):
        values = symmetric_beta(ends, parameter)
        assert ((values >= 0) & (values <= 1)).all()
        assert float(values[2]) == pytest.approx(0.5)


def test_every_order_of_a_batch_is_equally_likely() -> None:
    epochs = 3000
    batch = torch.tensor([10, 3, 77])
    orders = torch.stack([shuffled(batch, seed=0, epoch=epoch, stream="mixing partner") for epoch in range(epochs)])
    counts = torch.unique(orders, dim=0, return_counts=True)[1]
    assert len(counts) == 6
    assert_shares(counts, torch.full((6,), 1 / 6))


def test_half_is_drawn_for_every_sample_by_itself() -> None:
    one, other = half(INDEX, **draw), half(INDEX, seed=3, epoch=8)
    assert_shares(torch.bincount(2 * one + other), torch.full((4,), 0.25))
    assert torch.equal(half(INDEX.flip(0), **draw), one.flip(0))


def test_whole_batch_is_all_or_nothing() -> None:
    batches = torch.stack([whole_batch(batch, probability=0.3, **draw) for batch in INDEX.split(10)])
    assert (batches == batches[:, :1]).all()
    assert_shares(torch.bincount(batches[:, 0].long()), torch.tensor([0.7, 0.3]))
    assert whole_batch(INDEX, probability=1.0, **draw).all()


def test_mixup_and_cutmix_by_turns() -> None:
    turns = set()
    for epoch in range(8):
        images, targets, _ = Mix("mixup_cutmix", shares=False)(photos(6), INDEX[:6], INDEX[:6], seed=0, epoch=epoch)
        for mix in (CUTMIX, MIXUP):
            its_images, its_targets, _ = mix(photos(6), INDEX[:6], INDEX[:6], seed=0, epoch=epoch)
            if images.equal(its_images):
                turns.add(mix.name)
                assert all(torch.equal(mine, its) for mine, its in zip(targets, its_targets, strict=True))
                break
        else:
            raise AssertionError("neither of the two")
    assert turns == {"mixup", "cutmix"}
