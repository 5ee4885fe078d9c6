"""DDGSD: both views learn, and neither is preferred; the task's two views are two."""

from __future__ import annotations

import torch
from helpers import small, value_and_gradient
from torch import Tensor

from pskd.methods import DDGSD
from pskd.workbench import tasks
from pskd.workbench.runs.group import Group


def test_neither_view_is_preferred(logits: Tensor, labels: Tensor) -> None:
    one = value_and_gradient(DDGSD()(logits, labels, view_logits=2 * logits.flip(0)), logits)
    other = value_and_gradient(DDGSD()(2 * logits.flip(0), labels, view_logits=logits), logits)
    torch.testing.assert_close(one, other)
    fixed = value_and_gradient(DDGSD()(logits, labels, view_logits=2 * logits.flip(0).detach()), logits)
    assert torch.equal(fixed[0], one[0])
    assert not torch.equal(fixed[1], one[1])


def test_equals_the_equation_in_both_views(logits: Tensor, labels: Tensor) -> None:
    other = (2 * logits.detach().flip(0)).requires_grad_()
    wanted = torch.zeros((), dtype=torch.float64)
    for a, b, label in zip(logits, other, labels.tolist(), strict=True):
        wanted = wanted - (a.log_softmax(0)[label] + b.log_softmax(0)[label]) / 2
        for student, teacher in ((a / 3, b.detach() / 3), (b / 3, a.detach() / 3)):
            q = teacher.softmax(0)
            wanted = wanted + 9 * (q * (q.log() - student.log_softmax(0))).sum()
    wanted = wanted / len(labels)
    found = DDGSD()(logits, labels, view_logits=other)
    torch.testing.assert_close(found, wanted)
    slopes = [torch.autograd.grad(loss, (logits, other)) for loss in (found, wanted)]
    torch.testing.assert_close(*slopes)


def test_the_second_view_is_another_one_of_the_same_images() -> None:
    """A pure function of (seed, epoch, sample), with draws that no first view has."""
    task = tasks.create(small("method=ddgsd", "augment.pad=2"))
    plan = task.plan(1, Group())
    batches = list(task.batches(plan, 1, torch.device("cpu"), DDGSD.needs))
    later = list(task.batches(plan[3:], 1, torch.device("cpu"), DDGSD.needs))
    assert torch.equal(batches[3].view, later[0].view)
    whole, views = torch.cat([b.inputs for b in batches]), torch.cat([b.view for b in batches])
    same = (whole == views).flatten(1).all(1).float().mean()
    assert same < 3 / 25, "one of 25 places is the same by chance"
    model = task.model()
    given = task.provided(DDGSD(), model, batches[0])
    assert given["view_logits"].requires_grad
