"""CS-KD against its equation, written out sample by sample in float64; and the statistics of its partners."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from helpers import value_and_gradient
from torch import Tensor

from pskd.errors import PskdError
from pskd.methods.cs_kd import CSKD, SameClassPartners

B, K = 6, 5


def softmax(z: Tensor, temperature: float = 1.0) -> Tensor:
    return torch.exp(z / temperature) / torch.exp(z / temperature).sum()


def literal(z: Tensor, label: int, partner: Tensor, temperature: float, lam: float) -> Tensor:
    """The loss of one sample."""
    p, p_soft, teacher = softmax(z), softmax(z, temperature), softmax(partner, temperature)
    divergence = sum(teacher[k] * torch.log(teacher[k] / p_soft[k]) for k in range(K))
    return -torch.log(p[label]) + lam * temperature**2 * divergence


@pytest.fixture
def partner() -> Tensor:
    return torch.randn(B, K, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).mul(3)


@pytest.mark.parametrize(("temperature", "lam"), [(4.0, 1.0), (1.0, 0.5), (20.0, 3.0), (4.0, 0.0)])
def test_equals_the_equation_in_value_and_gradient(
    logits: Tensor, labels: Tensor, partner: Tensor, temperature: float, lam: float
) -> None:
    method = CSKD(temperature, lam)
    each = [literal(*sample, temperature, lam) for sample in zip(logits, labels.tolist(), partner, strict=True)]
    actual = method.loss(logits, labels, partner_logits=partner)
    torch.testing.assert_close(sum(actual.parts.values()), actual.total.detach())
    expected = value_and_gradient(torch.stack(each).mean(), logits)
    torch.testing.assert_close(value_and_gradient(actual.total, logits), expected)
    assert torch.autograd.gradcheck(lambda z: method(z, labels, partner_logits=partner), (logits,))


def test_the_partner_is_a_constant(logits: Tensor, labels: Tensor, partner: Tensor) -> None:
    """Also where the caller forgot torch.no_grad()."""
    partner.requires_grad_()
    CSKD()(logits, labels, partner_logits=partner).backward()
    assert partner.grad is None


def test_where_not_distilled_the_label_alone_counts(logits: Tensor, labels: Tensor, partner: Tensor) -> None:
    """Half and half: mixed samples keep their mixed label, the others have lam = 1 and a partner."""
    other, lam = labels.flip(0), torch.tensor([1.0, 0.3, 1.0, 0.8, 1.0, 0.0], dtype=torch.float64)
    distilled = lam == 1
    each = [
        literal(z, int(a), teacher, 4.0, 1.0)
        if taken
        else -share * torch.log(softmax(z)[a]) - (1 - share) * torch.log(softmax(z)[b])
        for z, a, b, share, teacher, taken in zip(logits, labels, other, lam, partner, distilled, strict=True)
    ]
    actual = CSKD()(logits, (labels, other, lam), partner_logits=partner, distilled=distilled)
    expected = value_and_gradient(torch.stack(each).mean(), logits)
    torch.testing.assert_close(value_and_gradient(actual, logits), expected)


def test_ignored_positions_take_no_part() -> None:
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(2, K, 3, dtype=torch.float64, generator=generator, requires_grad=True)
    teacher = torch.randn(2, K, 3, dtype=torch.float64, generator=generator)
    labels = torch.tensor([[1, -100, 0], [4, 3, -100]])
    distilled = torch.tensor([True, False])
    each = [literal(logits[0, :, i], int(labels[0, i]), teacher[0, :, i], 4.0, 1.0) for i in (0, 2)]
    each += [-torch.log(softmax(logits[1, :, i])[labels[1, i]]) for i in (0, 1)]
    actual = CSKD()(logits, labels, partner_logits=teacher, distilled=distilled)
    expected = value_and_gradient(torch.stack(each).mean(), logits)
    torch.testing.assert_close(value_and_gradient(actual, logits), expected)


def test_half_precision_is_reduced_in_float32(logits: Tensor, labels: Tensor, partner: Tensor) -> None:
    half, teacher = logits.detach().bfloat16().requires_grad_(), partner.bfloat16()
    full = half.detach().float().requires_grad_()
    expected, expected_gradient = value_and_gradient(CSKD()(full, labels, partner_logits=teacher.float()), full)
    loss, gradient = value_and_gradient(CSKD()(half, labels, partner_logits=teacher), half)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradient, expected_gradient.bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(CSKD()(half, labels, partner_logits=teacher).detach(), expected)


def test_parts_of_a_batch_add_up(logits: Tensor, labels: Tensor, partner: Tensor) -> None:
    batches = zip(logits.split([2, 4]), labels.split([2, 4]), partner.split([2, 4]), strict=True)
    parts = sum(CSKD()(z, y, partner_logits=teacher) * len(y) / B for z, y, teacher in batches)
    expected = value_and_gradient(CSKD()(logits, labels, partner_logits=partner), logits)
    torch.testing.assert_close(value_and_gradient(parts, logits), expected)


@pytest.mark.parametrize("temperature", [0.0, -4.0, float("inf"), float("nan")])
def test_wrong_temperature(temperature: float) -> None:
    with pytest.raises(PskdError, match="temperature must be a positive number"):
        CSKD(temperature)


def test_wrong_use(logits: Tensor, labels: Tensor, partner: Tensor) -> None:
    with pytest.raises(PskdError, match="lam must be 0 or a positive number"):
        CSKD(lam=-1)
    with pytest.raises(PskdError, match="partner_logits is missing"):
        CSKD()(logits, labels)
    with pytest.raises(PskdError, match=r"partner_logits has shape \(6, 4\)"):
        CSKD()(logits, labels, partner_logits=partner[:, :4])
    with pytest.raises(PskdError, match=r"distilled has shape \(5,\)"):
        CSKD()(logits, labels, partner_logits=partner, distilled=torch.ones(5))


class TestSameClassPartners:
    labels = torch.tensor([7, 1, 7, 3, 1, 7, 3, 7, 7])  # classes in no order, of 2, 2 and 5 samples

    def test_every_other_sample_of_the_class_is_equally_likely_and_itself_never_chosen(self) -> None:
        partners, epochs = SameClassPartners(self.labels, seed=5), 2000
        everyone = torch.arange(len(self.labels))
        drawn = torch.stack([partners(everyone, epoch) for epoch in range(epochs)])
        assert (self.labels[drawn] == self.labels).all()
        assert (drawn != everyone).all()
        frequency = F.one_hot(drawn, len(self.labels)).double().mean(0)  # (sample, partner)
        possible = (self.labels[:, None] == self.labels) & ~torch.eye(len(self.labels), dtype=torch.bool)
        expected = possible / possible.sum(1, keepdim=True)
        # Five standard deviations of a share that was counted 2000 times.
        assert ((frequency - expected).abs() <= 5 * (expected * (1 - expected) / epochs).sqrt()).all()

    def test_large_classes_are_reached_to_their_ends(self) -> None:
        count = 1000
        drawn = SameClassPartners(torch.zeros(count, dtype=torch.int64))(torch.arange(count), epoch=0)
        steps = (drawn - torch.arange(count)) % count
        assert steps.min() >= 1
        assert abs(float(steps.double().mean()) - count / 2) < 5 * count / 12**0.5 / count**0.5

    def test_is_a_pure_function_of_seed_epoch_and_sample(self) -> None:
        labels = torch.arange(1000) % 10
        partners, everyone = SameClassPartners(labels, seed=1), torch.arange(1000)
        whole = partners(everyone, epoch=3)
        shuffled = torch.randperm(1000, generator=torch.Generator().manual_seed(0))
        partners(everyone, epoch=4)
        assert torch.equal(SameClassPartners(labels, seed=1)(shuffled, epoch=3), whole[shuffled])
        for another in (partners(everyone, epoch=4), SameClassPartners(labels, seed=2)(everyone, epoch=3)):
            assert (another == whole).double().mean() < 0.05  # 1 in 99 by chance

    def test_a_sample_that_is_alone_is_its_own_partner_and_warned_of_once(self) -> None:
        with pytest.warns(UserWarning, match=r"2 of 3 classes have one training sample only \(for example class 4\)"):
            partners = SameClassPartners(torch.tensor([4, 0, 9, 0]))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert partners(torch.arange(4), epoch=0).tolist() == [0, 3, 2, 1]
            SameClassPartners(torch.tensor([0, 0]))

    def test_wrong_use(self) -> None:
        with pytest.raises(PskdError, match="labels must be class indices"):
            SameClassPartners(torch.ones(4, 2))
        with pytest.raises(PskdError, match=r"index: -1\.\.9 is not inside 0\.\.8"):
            SameClassPartners(self.labels)(torch.tensor([-1, 9]), epoch=0)
