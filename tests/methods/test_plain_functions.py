"""Each method and its equation, written plainly for a whole batch, agree in value and gradient."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from helpers import value_and_gradient
from torch import Tensor

from pskd.errors import PskdError
from pskd.memory import PredictionBank
from pskd.methods import CSKD, PSKD, TFKD, Hard, LabelSmoothing


def cross_entropy(q: Tensor, logits: Tensor) -> Tensor:
    return -(q * logits.log_softmax(1)).sum(1).mean()


def divergence(teacher: Tensor, logits: Tensor) -> Tensor:
    return (teacher * (teacher.log() - logits.log_softmax(1))).sum(1).mean()


def hard_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(F.one_hot(labels, logits.shape[1]), logits)


def label_smoothing_loss(logits: Tensor, labels: Tensor, epsilon: float, others_only: bool) -> Tensor:
    y, num_classes = F.one_hot(labels, logits.shape[1]), logits.shape[1]
    spread = (1 - y) / (num_classes - 1) if others_only else 1 / num_classes
    return cross_entropy((1 - epsilon) * y + epsilon * spread, logits)


def cs_kd_loss(logits: Tensor, labels: Tensor, partner: Tensor, temperature: float, lam: float) -> Tensor:
    taught = divergence((partner / temperature).softmax(1), logits / temperature)
    return hard_loss(logits, labels) + lam * temperature**2 * taught


def tf_kd_self_loss(logits: Tensor, labels: Tensor, teacher: Tensor, temperature: float, alpha: float) -> Tensor:
    taught = divergence((teacher / temperature).softmax(1), logits / temperature)
    return (1 - alpha) * hard_loss(logits, labels) + alpha * temperature**2 * taught


def tf_kd_reg_loss(
    logits: Tensor, labels: Tensor, temperature: float, alpha: float, a: float, multiplier: float, released: bool
) -> Tensor:
    """As released, u is taken for logits, and the student is not softened."""
    y, others = F.one_hot(labels, logits.shape[1]), logits.shape[1] - 1
    u = a * y + (1 - a) / others * (1 - y)
    if released:
        taught = divergence((u / temperature).softmax(1), logits)
    else:
        taught = divergence((u.log() / temperature).softmax(1), logits / temperature)
    return (1 - alpha) * hard_loss(logits, labels) + alpha * multiplier * taught


def ps_kd_loss(logits: Tensor, labels: Tensor, past: Tensor, alpha: float) -> Tensor:
    """Eq. 6."""
    return cross_entropy((1 - alpha) * F.one_hot(labels, logits.shape[1]) + alpha * past, logits)


@pytest.fixture
def other(logits: Tensor) -> Tensor:
    return torch.randn(logits.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(5)).mul(2)


def agree(found: Tensor, plain: Tensor, logits: Tensor) -> None:
    torch.testing.assert_close(value_and_gradient(found, logits), value_and_gradient(plain, logits))


def test_hard(logits: Tensor, labels: Tensor) -> None:
    agree(Hard()(logits, labels), hard_loss(logits, labels), logits)


@pytest.mark.parametrize("others_only", [False, True])
def test_label_smoothing(logits: Tensor, labels: Tensor, others_only: bool) -> None:
    found = LabelSmoothing(0.2, others_only)(logits, labels)
    agree(found, label_smoothing_loss(logits, labels, 0.2, others_only), logits)


def test_cs_kd(logits: Tensor, labels: Tensor, other: Tensor) -> None:
    found = CSKD(3.0, 0.5)(logits, labels, partner_logits=other)
    agree(found, cs_kd_loss(logits, labels, other, 3.0, 0.5), logits)


def test_tf_kd(logits: Tensor, labels: Tensor, other: Tensor) -> None:
    taught = TFKD("self", 6.0, 0.9)(logits, labels, teacher_logits=other)
    agree(taught, tf_kd_self_loss(logits, labels, other, 6.0, 0.9), logits)
    for released in (True, False):
        made = TFKD("reg", 7.0, 0.3, a=0.8, multiplier=5, released=released)(logits, labels)
        agree(made, tf_kd_reg_loss(logits, labels, 7.0, 0.3, 0.8, 5, released), logits)


def test_ps_kd(logits: Tensor, labels: Tensor, other: Tensor) -> None:
    method = PSKD(2, alpha=0.6, memory=PredictionBank(6, 5, dtype=torch.float64))
    index = torch.arange(6)
    method.start_epoch(0)
    method(other.clone().requires_grad_(), labels, index=index)
    method.start_epoch(1)
    found = method(logits, labels, index=index)
    agree(found, ps_kd_loss(logits, labels, other.softmax(1), alpha=0.6), logits)


@pytest.mark.parametrize("mask", [None, [True, False, True, True, False, True]])
def test_ps_kd_with_partners(logits: Tensor, labels: Tensor, other: Tensor, mask: list[bool] | None) -> None:
    """Twice 0.4 times what CS-KD adds to plain cross-entropy, at alpha_t = 0.6; also with samples left out."""
    method = PSKD(2, alpha=0.6, schedule="constant", memory=PredictionBank(6, 5, dtype=torch.float64), partners=2.0)
    index, distilled = torch.arange(6), None if mask is None else torch.tensor(mask)
    method.start_epoch(0)
    method(other.clone().requires_grad_(), labels, index=index, partner_logits=other)
    method.start_epoch(1)
    found = method.loss(logits, labels, index=index, partner_logits=other.flip(0), distilled=distilled)
    taught = torch.ones(6, 1, dtype=torch.bool) if distilled is None else distilled[:, None]
    past = torch.where(taught, other.softmax(1), F.one_hot(labels, 5))
    partners = torch.where(taught, other.flip(0), logits.detach())  # who agrees with himself learns nothing
    added = cs_kd_loss(logits, labels, partners, 4.0, 1.0) - hard_loss(logits, labels)
    plain = ps_kd_loss(logits, labels, past, alpha=0.6)
    torch.testing.assert_close(found.parts, {"soft_cross_entropy": plain.detach(), "partners": 0.8 * added.detach()})
    agree(found.total, plain + 0.8 * added, logits)


def test_partners_count_fully_where_auto_has_no_past_yet(logits: Tensor, labels: Tensor, other: Tensor) -> None:
    method = PSKD(2, alpha="auto", memory=PredictionBank(6, 5, dtype=torch.float64), partners=2.0)
    method.start_epoch(0)
    found = method(logits, labels, index=torch.arange(6), partner_logits=other)
    agree(found, cs_kd_loss(logits, labels, other, 4.0, 2.0), logits)


def test_partners_are_asked_for_only_where_they_count() -> None:
    memory = PredictionBank(6, 5)
    assert PSKD(2, memory=memory).needs == {"index"}
    method = PSKD(2, memory=memory, partners=0.1)
    assert method.needs == {"index", "partner_logits"}
    method.start_epoch(0)
    with pytest.raises(PskdError, match=r"partner_logits is missing"):
        method(torch.zeros(1, 5, requires_grad=True), torch.tensor([0]), index=torch.tensor([0]))
