"""The order of the data: every sample once, the same number of steps everywhere, nothing but (seed, epoch) needed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from pskd.plan import Step, Stretch, epoch_plan
from pskd.random import epoch_permutation


def plans(samples: int, batch: int, accumulate: int, hosts: int, world: int, **more: Any) -> list[list[Step]]:
    """The plans of all processes, ``world`` of them on each host."""
    places = [{"host": host, "rank": rank} for host in range(hosts) for rank in range(world)]
    return [
        epoch_plan(samples, batch, accumulate, seed=1, epoch=2, hosts=hosts, world=world, **place, **more)
        for place in places
    ]


def counted(plan: list[Step]) -> Tensor:
    return torch.cat([part[:real] for step in plan for part, real in zip(step.parts, step.real, strict=True)])


@pytest.mark.parametrize(
    ("samples", "batch", "accumulate", "hosts", "world"),
    [
        (103, 16, 1, 1, 1),
        (103, 16, 3, 1, 2),
        (5, 8, 2, 1, 4),
        (3, 2, 1, 1, 4),
        (103, 16, 1, 2, 1),
        (103, 16, 3, 3, 2),
        (5, 8, 2, 4, 2),
        (3, 2, 1, 5, 1),
        (3, 8, 8, 2, 1),
    ],
)
def test_every_sample_counts_once(samples: int, batch: int, accumulate: int, hosts: int, world: int) -> None:
    every = plans(samples, batch, accumulate, hosts, world)
    assert len({len(plan) for plan in every}) == 1
    assert torch.equal(torch.cat([counted(plan) for plan in every]).sort().values, torch.arange(samples))
    for steps in zip(*every, strict=True):
        assert len({step.total for step in steps}) == 1
        assert sum(sum(step.real) for step in steps) == steps[0].total
        assert abs(steps[0].total - batch) <= max(hosts, batch - samples % batch)
        for step in steps:
            assert len(step.parts) == min(accumulate, samples)
            assert all(len(part) and int(part.max()) < samples for part in step.parts)


def test_several_processes_take_the_samples_of_one() -> None:
    one = epoch_plan(64, 16, 1, seed=0, epoch=0)
    two = [epoch_plan(64, 16, 1, seed=0, epoch=0, rank=rank, world=2) for rank in range(2)]
    for step, first, second in zip(one, *two, strict=True):
        assert set(step.parts[0].tolist()) == {*first.parts[0].tolist(), *second.parts[0].tolist()}


def test_a_host_keeps_its_samples_for_good() -> None:
    for epoch in range(3):
        for host in range(3):
            plan = epoch_plan(50, 8, 1, seed=0, epoch=epoch, host=host, hosts=3)
            assert set(counted(plan).tolist()) == set(range(host, 50, 3))


def test_hosts_shuffle_on_their_own() -> None:
    first, second = (counted(epoch_plan(60, 60, 1, seed=0, epoch=0, host=host, hosts=2)) // 2 for host in range(2))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("hosts", [(1, 2), (2, 1), (3, 2, 4), (2, 2)])
def test_an_epoch_can_end_on_another_number_of_hosts(hosts: tuple[int, ...]) -> None:
    """Each number of hosts takes two steps of the epoch, the last one the rest; still every sample counts once."""
    seen, begun = [], ()
    for position, number in enumerate(hosts):
        every = plans(103, 16, 2, number, 2, stretches=begun)
        start, until = 2 * position, 2 * position + 2 if position + 1 < len(hosts) else 7
        assert {len(plan) for plan in every} == {7}
        seen += [counted(plan[start:until]) for plan in every]
        assert all(step.total == sum(sum(plan[at].real) for plan in every) for at, step in enumerate(every[0]))
        begun = (*begun, Stretch(until, number))
    assert torch.equal(torch.cat(seen).sort().values, torch.arange(103))


def test_order_depends_on_seed_and_epoch() -> None:
    assert torch.equal(epoch_permutation(50, 3, 4), epoch_permutation(50, 3, 4))
    assert not torch.equal(epoch_permutation(50, 3, 4), epoch_permutation(50, 3, 5))
    assert not torch.equal(epoch_permutation(50, 3, 4), epoch_permutation(50, 4, 4))


def test_a_lone_last_sample_joins_the_batch_before() -> None:
    assert [step.total for step in epoch_plan(33, 16, 1, seed=0, epoch=0)] == [16, 17]
    assert [step.total for step in epoch_plan(1, 16, 1, seed=0, epoch=0)] == [1]
