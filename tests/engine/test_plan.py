"""The order of the data: every sample once, the same number of steps everywhere, nothing but (seed, epoch) needed."""

from __future__ import annotations

import pytest
import torch

from pskd.engine.plan import epoch_plan, shuffled


@pytest.mark.parametrize(
    ("samples", "batch", "accumulate", "world"), [(103, 16, 1, 1), (103, 16, 3, 2), (5, 8, 2, 4), (3, 2, 1, 4)]
)
def test_every_sample_counts_once(samples: int, batch: int, accumulate: int, world: int) -> None:
    plans = [epoch_plan(samples, batch, accumulate, seed=1, epoch=2, rank=rank, world=world) for rank in range(world)]
    assert len({len(plan) for plan in plans}) == 1
    counted = [part[:real] for plan in plans for step in plan for part, real in zip(step.parts, step.real, strict=True)]
    assert torch.equal(torch.cat(counted).sort().values, torch.arange(samples))
    for steps in zip(*plans, strict=True):
        assert len({step.total for step in steps}) == 1
        assert sum(sum(step.real) for step in steps) == steps[0].total
        assert all(len(step.parts) == accumulate and all(len(part) for part in step.parts) for step in steps)


def test_several_processes_take_the_samples_of_one() -> None:
    one = epoch_plan(64, 16, 1, seed=0, epoch=0)
    two = [epoch_plan(64, 16, 1, seed=0, epoch=0, rank=rank, world=2) for rank in range(2)]
    for step, first, second in zip(one, *two, strict=True):
        assert set(step.parts[0].tolist()) == {*first.parts[0].tolist(), *second.parts[0].tolist()}


def test_order_depends_on_seed_and_epoch() -> None:
    assert torch.equal(shuffled(50, 3, 4), shuffled(50, 3, 4))
    assert not torch.equal(shuffled(50, 3, 4), shuffled(50, 3, 5))
    assert not torch.equal(shuffled(50, 3, 4), shuffled(50, 4, 4))


def test_a_lone_last_sample_joins_the_batch_before() -> None:
    assert [step.total for step in epoch_plan(33, 16, 1, seed=0, epoch=0)] == [16, 17]
    assert [step.total for step in epoch_plan(1, 16, 1, seed=0, epoch=0)] == [1]
