"""Workers that stay from one epoch to the next, and the memory in which they hand over batches."""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pskd.errors import PskdError
from pskd.workbench.augment import Augment
from pskd.workbench.data import OnDisk, View
from pskd.workbench.data.items import Items

VIEW = View(3, (12, 12), None, (0.5, 0.4, 0.3), (0.2, 0.2, 0.3))
CROPS = Augment(VIEW, crop="resized", jitter=0.4)
COUNT = 29


def files(root: Path) -> OnDisk:
    random = np.random.default_rng(0)
    paths = tuple(f"{number}.png" for number in range(COUNT))
    for path in paths:
        Image.fromarray(random.integers(0, 256, (16, 20, 3), dtype=np.uint8)).save(root / path)
    return OnDisk(paths, torch.arange(COUNT) % 3, root, VIEW)


def plan(epoch: int = 0, size: int = 3) -> tuple[torch.Tensor, ...]:
    return torch.randperm(COUNT, generator=torch.Generator().manual_seed(epoch)).split(size)


def epoch_of(split, epoch: int, workers: int = 2, size: int = 3, augment: Augment | None = CROPS) -> torch.Tensor:
    batches = split.batches(plan(epoch, size), augment=augment, seed=1, epoch=epoch, workers=workers)
    return torch.cat([batch.inputs for batch in batches])


def alive() -> set[int]:
    return {child.pid for child in multiprocessing.active_children()}


def ended(before: set[int]) -> bool:
    until = time.monotonic() + 20
    while alive() - before and time.monotonic() < until:
        time.sleep(0.01)
    return not alive() - before


def test_workers_stay_for_the_next_epoch_and_end_with_their_data(tmp_path: Path):
    before, split = alive(), files(tmp_path)
    first = epoch_of(split, 0)
    workers = alive() - before
    assert len(workers) == 2
    assert torch.equal(epoch_of(split, 0, augment=None), epoch_of(split, 0, workers=0, augment=None))
    second = epoch_of(split, 1)
    assert alive() - before == workers, "the same two, and none of the evaluation"
    third = epoch_of(split, 2, size=8)  # which needs more memory
    assert len(alive() - before) == 2
    assert not alive() & workers
    for epoch, (seen, size) in enumerate(((first, 3), (second, 3), (third, 8))):
        assert torch.equal(seen, epoch_of(split, epoch, workers=0, size=size))
    del split
    assert ended(before)


def test_an_epoch_that_is_left_early_or_fails_takes_its_workers_along(tmp_path: Path):
    before, split = alive(), files(tmp_path)
    batches = split.batches(plan(), augment=CROPS, seed=1, workers=2)
    next(batches)
    del batches
    assert ended(before)
    content = split.source(4).read_bytes()
    split.source(4).write_bytes(content[:60])
    with pytest.raises(PskdError, match=r"cannot read image .*4\.png"):
        epoch_of(split, 0)
    assert ended(before)
    split.source(4).write_bytes(content)
    assert torch.equal(epoch_of(split, 0), epoch_of(split, 0, workers=0))


def test_batches_that_are_kept_do_not_change_and_two_epochs_run_at_once(tmp_path: Path):
    """Each has memory of its own, also when both use workers that were left over."""
    split = files(tmp_path)
    for epoch in range(3):
        one, other = (
            split.batches(plan(epoch), augment=CROPS, seed=1, epoch=which, workers=2) for which in (epoch, -1 - epoch)
        )
        pairs = [(a.inputs, b.inputs) for a, b in zip(one, other, strict=True)]
        for which, seen in zip((epoch, -1 - epoch), zip(*pairs, strict=True), strict=True):
            batches = split.batches(plan(epoch), augment=CROPS, seed=1, epoch=which)
            assert torch.equal(torch.cat(seen), torch.cat([batch.inputs for batch in batches]))


class Noisy:
    """A user's data set that draws its own random numbers."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.rand(3, 16, 20), index % 3


def test_the_workers_of_a_users_data_set_start_anew_so_that_its_epochs_can_be_repeated():
    before, split = alive(), Items(Noisy(), torch.arange(COUNT), torch.arange(COUNT) % 3, VIEW)
    first = epoch_of(split, 0)
    assert ended(before)
    epoch_of(split, 1)
    assert torch.equal(epoch_of(split, 0), first)
