"""Plain cross-entropy as a method."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from pskd.methods.hard import Hard


def test_it_is_cross_entropy_for_every_kind_of_label() -> None:
    logits, a = torch.randn(4, 5, requires_grad=True), torch.tensor([0, 1, 2, -100])
    b, lam = torch.tensor([3, 1, 0, 2]), torch.tensor([0.1, 0.5, 1.0, 0.0])
    method = Hard()
    method.start_epoch(0)
    torch.testing.assert_close(method(logits, a), F.cross_entropy(logits, a))
    torch.testing.assert_close(method(logits, logits.softmax(1).detach()), F.cross_entropy(logits, logits.softmax(1)))
    first, second = (F.cross_entropy(logits, label, reduction="none") for label in (a, b))
    torch.testing.assert_close(method(logits, (a, b, lam)), (lam * first + (1 - lam) * second).mean())


def test_parts_and_state() -> None:
    logits = torch.randn(4, 5, requires_grad=True)
    loss = Hard().loss(logits, torch.zeros(4).long(), distilled=torch.zeros(4).bool())
    assert torch.equal(loss.parts["cross_entropy"], loss.total.detach())
    assert not loss.parts["cross_entropy"].requires_grad
    assert Hard().state_dict() == {}
    Hard().load_state_dict({})
