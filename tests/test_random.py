from __future__ import annotations

import hashlib

import pytest
import torch

from pskd.random import uniform

N = 100_000


def draw(n: int = N, *, seed: int = 0, epoch: int = 0, stream: str = "test", draws: int = 1) -> torch.Tensor:
    return uniform(torch.arange(n), seed=seed, epoch=epoch, stream=stream, draws=draws).double()


def test_equals_splitmix64_written_in_python_integers():
    mask = 2**64 - 1

    def reference(index: int, draw: int) -> float:
        key = hashlib.blake2b(f"-3/7/flip/{draw}".encode(), digest_size=8).digest()
        z = (index * 0x9E3779B97F4A7C15 + int.from_bytes(key, "little")) & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        z ^= z >> 31
        return (z >> 40) / 2**24

    index = torch.tensor([0, 1, 2, 49_999, 2**40 + 5])
    numbers = uniform(index, seed=-3, epoch=7, stream="flip", draws=3)
    assert numbers.tolist() == [[reference(i, d) for d in range(3)] for i in index.tolist()]


def test_moments_and_range_are_those_of_the_uniform_distribution():
    numbers = draw()
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert abs(numbers.mean() - 1 / 2) < 4 * (1 / 12 / N) ** 0.5
    assert abs(numbers.var() - 1 / 12) < 4 * (1 / 180 / N) ** 0.5  # the variance of (u - 1/2)^2 is 1/180


@pytest.mark.parametrize("bins", [9, 81, 256])
@pytest.mark.parametrize("seed", [0, 1, 2**31])
def test_bins_are_filled_evenly(bins: int, seed: int):
    counts = (draw(seed=seed).flatten() * bins).long().bincount(minlength=bins)
    expected = N / bins
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert abs(chi_square - (bins - 1)) < 4 * (2 * (bins - 1)) ** 0.5


def test_low_bits_are_even_too():
    low = (draw().flatten() * 2**24).long() % 16
    chi_square = ((low.bincount(minlength=16) - N / 16) ** 2 / (N / 16)).sum()
    assert abs(chi_square - 15) < 4 * 30**0.5


OTHERS = {
    "next sample": draw(N + 1)[1:],
    "next epoch": draw(epoch=1),
    "next seed": draw(seed=1),
    "other stream": draw(stream="tesu"),
    "next draw": draw(draws=2)[:, 1:],
}


@pytest.mark.parametrize("name", OTHERS)
def test_neighbours_are_not_correlated(name: str):
    pair = torch.stack((draw().squeeze(1), OTHERS[name].squeeze(1)))
    assert abs(torch.corrcoef(pair)[0, 1]) < 4 / N**0.5
    joint = (pair * 16).long()
    counts = (joint[0] * 16 + joint[1]).bincount(minlength=256)
    assert abs(((counts - N / 256) ** 2 / (N / 256)).sum() - 255) < 4 * 510**0.5


def test_more_draws_do_not_change_the_first_ones():
    assert torch.equal(draw(draws=5)[:, :2], draw(draws=2))


def test_depends_on_the_sample_and_not_on_its_place():
    index = torch.arange(1000).flip(0)[::3]
    assert torch.equal(
        uniform(index, seed=0, epoch=3, stream="crop", draws=2),
        uniform(torch.arange(1000), seed=0, epoch=3, stream="crop", draws=2)[index],
    )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_is_the_same_on_a_gpu():
    index = torch.arange(N)
    here = uniform(index, seed=5, epoch=2, stream="crop", draws=3)
    assert torch.equal(here, uniform(index.cuda(), seed=5, epoch=2, stream="crop", draws=3).cpu())
