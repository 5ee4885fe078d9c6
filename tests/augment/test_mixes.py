"""Cutout, CutMix and Mixup: what they do to each pixel, and by statistics over many draws how they choose."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from pskd.errors import PskdError
from pskd.random import shuffled
from pskd.workbench.augment.cutmix import cutmix
from pskd.workbench.augment.cutout import cutout
from pskd.workbench.augment.mixing import half, symmetric_beta, whole_batch
from pskd.workbench.augment.mixup import mixup

draw = {"seed": 3, "epoch": 7}
B = 20_000
INDEX = torch.arange(B) * 5 + 2

# The distribution functions of Beta(p, p) that have a closed form.
BETA_CDF: dict[float, Callable[[float], float]] = {
    0.5: lambda x: 2 / math.pi * math.asin(math.sqrt(x)),
    1.0: lambda x: x,
    2.0: lambda x: 3 * x**2 - 2 * x**3,
}

# Each as a function of (images, index) with whatever else it takes, returning the images.
MIXES = {
    "cutout": partial(cutout, hole=3),
    "cutmix": lambda images, index, **rest: cutmix(images, index, index, **rest)[0],
    "mixup": lambda images, index, **rest: mixup(images, index, index, **rest)[0],
}
every_mix = pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES)


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


@every_mix
def test_is_a_pure_function_of_seed_epoch_and_sample(mix: Callable[..., Tensor]) -> None:
    first = mix(photos(), INDEX[:64], **draw)
    assert torch.equal(mix(photos(), INDEX[:64], **draw), first)
    for other in ({"seed": 4, "epoch": 7}, {"seed": 3, "epoch": 8}):
        assert not torch.equal(mix(photos(), INDEX[:64], **other), first)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(1))
    if mix is MIXES["cutout"]:  # the others' partners depend on the batch
        assert torch.equal(mix(photos()[order], INDEX[:64][order], **draw), first[order])


@every_mix
def test_changes_the_batch_in_place_and_keeps_its_memory_format(mix: Callable[..., Tensor]) -> None:
    plain, channels_last = photos(), photos().contiguous(memory_format=torch.channels_last)
    assert mix(plain, INDEX[:64], **draw) is plain
    assert mix(channels_last, INDEX[:64], **draw) is channels_last
    assert plain.is_contiguous()
    assert channels_last.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(plain, channels_last)
    part = torch.zeros(64, 3, 11, 12)[:, :, 1:-1].copy_(photos())  # contiguous in no format
    assert torch.equal(mix(part, INDEX[:64], **draw), plain)


@every_mix
def test_only_chosen_images_change(mix: Callable[..., Tensor]) -> None:
    everyone, chosen = mix(photos(), INDEX[:64], **draw), half(INDEX[:64], **draw)
    assert 16 < chosen.sum() < 48
    some = mix(photos(), INDEX[:64], apply=chosen, **draw)
    assert torch.equal(some, torch.where(chosen[:, None, None, None], everyone, photos()))
    changed = (everyone != photos()).flatten(1).any(1)
    assert changed.float().mean() > 0.9


@every_mix
def test_half_precision(mix: Callable[..., Tensor]) -> None:
    images = photos().bfloat16()
    expected = mix(images.float(), INDEX[:64], **draw)
    torch.testing.assert_close(mix(images, INDEX[:64], **draw), expected.bfloat16(), rtol=0.02, atol=0.02)


@every_mix
def test_wrong_batches(mix: Callable[..., Tensor]) -> None:
    with pytest.raises(PskdError, match=r"images must be a normalised floating-point batch \(B, C, H, W\)"):
        mix(photos().byte(), INDEX[:64], **draw)
    with pytest.raises(PskdError, match=r"index must have one entry per image \(64,\), got shape \(63,\)"):
        mix(photos(), INDEX[:63], **draw)
    with pytest.raises(PskdError, match=r"apply must have one entry per image"):
        mix(photos(), INDEX[:64], apply=torch.ones(64, 1), **draw)


class TestCutout:
    @pytest.mark.parametrize("hole", [4, 5])
    def test_the_centre_is_uniform_and_the_square_is_clipped(self, hole: int) -> None:
        height, width = 9, 7
        images = cutout(torch.ones(B, 2, height, width), INDEX, hole=hole, **draw)
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
        images = cutout(photos(), INDEX[:64], hole=8, **draw)
        assert torch.equal(torch.where(images == 0, 0, photos()), images)

    @pytest.mark.parametrize("hole", [0, -1, 10])
    def test_wrong_hole(self, hole: int) -> None:
        with pytest.raises(PskdError, match=rf"hole must be 1 to 9 pixels for images of 9 x 12, got {hole}"):
            cutout(photos(), INDEX[:64], hole=hole, **draw)


class TestCutMix:
    def test_lam_is_the_exact_share_of_own_pixels_and_the_rest_is_the_partner(self) -> None:
        count, height, width = 500, 8, 5
        before = numbered(count, height, width)
        images, (own, other, lam) = cutmix(before.clone(), torch.arange(count), INDEX[:count], **draw)
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
        _, (_, _, lam) = cutmix(torch.zeros(B, 1, height, width), INDEX, INDEX, beta=beta, exact=exact, **draw)
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
        pasted = torch.cat(
            [
                1 - cutmix(torch.zeros(B, 1, 32, 32), INDEX, INDEX, seed=3, epoch=epoch, exact=exact)[1][2]
                for epoch in range(6)
            ]
        ).double()
        assert float(pasted.mean()) == pytest.approx(expected, abs=5e-4 + 4 * float(pasted.std()) / len(pasted) ** 0.5)
        assert len(pasted) == 120_000

    def test_without_apply_lam_is_1(self) -> None:
        taken = half(INDEX[:64], **draw)
        _, (_, _, lam) = cutmix(photos(), INDEX[:64], INDEX[:64], apply=taken, **draw)
        assert (lam[~taken] == 1).all()
        assert (lam[taken] < 1).float().mean() > 0.9

    def test_wrong_settings(self) -> None:
        with pytest.raises(PskdError, match="beta of the Beta distribution must be a positive number, got 0"):
            cutmix(photos(), INDEX[:64], INDEX[:64], beta=0.0, **draw)
        with pytest.raises(PskdError, match="labels must have one entry per image"):
            cutmix(photos(), INDEX[:63], INDEX[:64], **draw)


class TestMixup:
    def test_images_are_convex_combinations(self) -> None:
        before = photos()
        images, (own, other, lam) = mixup(before.clone(), torch.arange(64), INDEX[:64], **draw)
        assert torch.equal(other.sort().values, own)
        assert lam.min() >= 0
        assert lam.max() <= 1
        share = lam[:, None, None, None]
        torch.testing.assert_close(images, share * before + (1 - share) * before[other])
        low, high = torch.minimum(before, before[other]), torch.maximum(before, before[other])
        assert ((images >= low) & (images <= high)).all()

    @pytest.mark.parametrize("alpha", BETA_CDF)
    def test_lam_has_the_published_distribution(self, alpha: float) -> None:
        _, (_, _, lam) = mixup(torch.zeros(B, 1, 1, 1), INDEX, INDEX, alpha=alpha, **draw)
        expected = torch.tensor([BETA_CDF[alpha](x) for x in lam.sort().values.tolist()])
        distance = (expected - (torch.arange(B) + 0.5) / B).abs().max()
        assert distance < 1.95 / B**0.5  # Kolmogorov and Smirnov's, exceeded once in a thousand

    def test_without_apply_lam_is_1(self) -> None:
        taken = half(INDEX[:64], **draw)
        _, (_, _, lam) = mixup(photos(), INDEX[:64], INDEX[:64], apply=taken, **draw)
        assert (lam[~taken] == 1).all()
        assert (lam[taken] < 1).all()

    @pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan")])
    def test_wrong_alpha(self, alpha: float) -> None:
        with pytest.raises(PskdError, match=f"alpha of the Beta distribution must be a positive number, got {alpha}"):
            mixup(photos(), INDEX[:64], INDEX[:64], alpha=alpha, **draw)


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
    with pytest.raises(PskdError, match=r"probability must lie in \[0, 1\], got 2"):
        whole_batch(INDEX, probability=2.0, **draw)
