"""DDGSD: both views learn, and neither is preferred; the task's two views are two."""

from __future__ import annotations

import torch
from helpers import small, value_and_gradient
from torch import Tensor

from pskd import tasks
from pskd.methods import DDGSD
from pskd.runs.group import Group


def test_neither_view_is_preferred(logits: Tensor, labels: Tensor) -> None:
    one = value_and_gradient(DDGSD()(logits, labels, view_logits=2 * logits.flip(0)), logits)
    other = value_and_gradient(DDGSD()(2 * logits.flip(0), labels, view_logits=logits), logits)
    torch.testing.assert_close(one, other)
    fixed = value_and_gradient(DDGSD()(logits, labels, view_logits=2 * logits.flip(0).detach()), logits)
    assert torch.equal(fixed[0], one[0])
    assert not torch.equal(fixed[1], one[1])


def test_the_second_view_is_another_one_of_the_same_images() -> None:
    """A pure function of (seed, epoch, sample), with draws that no first view has."""
    task = tasks.create(small("method=ddgsd", "augment.pad=2"))
    task.provide(DDGSD())
    plan = task.plan(1, Group())
    batches = list(task.batches(plan, 1, torch.device("cpu")))
    later = list(task.batches(plan[3:], 1, torch.device("cpu")))
    assert torch.equal(batches[3].view, later[0].view)
    whole, views = torch.cat([b.inputs for b in batches]), torch.cat([b.view for b in batches])
    same = (whole == views).flatten(1).all(1).float().mean()
    assert same < 3 / 25, "one of 25 places is the same by chance"
    model = task.model()
    given = task.provided(DDGSD(), model, batches[0])
    assert given["view_logits"].requires_grad
