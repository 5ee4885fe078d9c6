"""Classes equally often: the plan stays what it is, only the samples in it change."""

from __future__ import annotations

import torch

from pskd.plan import Step, Stretch, epoch_plan
from pskd.workbench.runs.balance import balance_plan, draw_evenly

LABELS = torch.tensor([0] * 70 + [1] * 25 + [2] * 5)[torch.randperm(100, generator=torch.Generator().manual_seed(0))]


def test_every_class_and_within_it_every_sample_comes_equally_often() -> None:
    times = torch.zeros(100, dtype=torch.long)
    for epoch in range(60):
        drawn = draw_evenly(torch.arange(100), LABELS, seed=1, epoch=epoch)
        assert LABELS[drawn].bincount().sort().values.tolist() == [33, 33, 34]
        copies = drawn.bincount(minlength=100)
        for number in range(3):
            assert copies[number == LABELS].max() - copies[number == LABELS].min() <= 1
        times += copies
    for number, size in enumerate((70, 25, 5)):
        own = times[number == LABELS].double()
        expected = 60 * 100 / 3 / size
        assert (own - expected).abs().max() < 5 * expected**0.5


def test_the_order_is_a_function_of_seed_and_epoch_and_has_no_pattern() -> None:
    first, again, other = (draw_evenly(torch.arange(100), LABELS, seed=0, epoch=epoch) for epoch in (3, 3, 4))
    assert first.equal(again)
    assert not first.equal(other)
    halves = LABELS[first].view(2, 50)
    assert all(10 <= int((half == number).sum()) <= 24 for half in halves for number in range(3))


def test_processes_and_hosts_keep_their_samples() -> None:
    """Also where an epoch is begun on one host and ended on two."""
    for hosts, world, stretches in ((1, 3, ()), (2, 2, ()), (2, 1, (Stretch(2, 1),))):
        places = [{"host": host, "rank": rank} for host in range(hosts) for rank in range(world)]
        seen: list[set[int]] = []
        for place in places:
            plan = epoch_plan(100, 16, 2, 0, 1, hosts=hosts, world=world, **place, stretches=stretches)
            even = balance_plan(plan, LABELS, seed=0, epoch=1)
            assert [(step.real, step.total) for step in even] == [(step.real, step.total) for step in plan]
            lengths = [[len(part) for part in step.parts] for step in plan]
            assert [[len(part) for part in step.parts] for step in even] == lengths
            own, drawn = _counted(plan), _counted(even)
            assert drawn <= own
            seen.append(drawn)
        assert sum(map(len, seen)) == len(set.union(*seen))


def _counted(plan: list[Step]) -> set[int]:
    parts = [part[:real] for step in plan for part, real in zip(step.parts, step.real, strict=True)]
    return set(torch.cat(parts).tolist())
