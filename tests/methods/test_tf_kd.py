"""TF-KD, both variants, against its equations, written out sample by sample in float64."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from helpers import value_and_gradient
from torch import Tensor

from pskd.errors import PskdError
from pskd.methods.tf_kd import TFKD

B, K = 6, 5


def softmax(z: Tensor, temperature: float = 1.0) -> Tensor:
    return torch.exp(z / temperature) / torch.exp(z / temperature).sum()


def divergence(teacher: Tensor, student: Tensor) -> Tensor:
    return sum(teacher[k] * torch.log(teacher[k] / student[k]) for k in range(len(teacher)))


def hand_made(label: int, a: float) -> Tensor:
    return torch.tensor([a if k == label else (1 - a) / (K - 1) for k in range(K)], dtype=torch.float64)


def literal_reg(z: Tensor, label: int, temperature: float, alpha: float, a: float) -> Tensor:
    """One sample's loss as published; softening is raising to the power 1/T and normalising."""
    powers = hand_made(label, a) ** (1 / temperature)
    kl = divergence(powers / powers.sum(), softmax(z, temperature))
    return -(1 - alpha) * torch.log(softmax(z)[label]) + alpha * kl


def literal_released(z: Tensor, label: int, temperature: float, alpha: float, a: float) -> Tensor:
    """One sample's loss as the authors' code has it (mean over samples)."""
    kl = divergence(softmax(hand_made(label, a), temperature), softmax(z))
    return -(1 - alpha) * torch.log(softmax(z)[label]) + alpha * kl


@pytest.fixture
def teacher() -> Tensor:
    return torch.randn(B, K, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).mul(3)


@pytest.mark.parametrize(("temperature", "alpha", "multiplier"), [(6, 0.95, 0.5), (20, 0.9, 1), (1, 0, 1), (3, 1, 2)])
def test_self_equals_the_equation_in_value_and_gradient(
    logits: Tensor, labels: Tensor, teacher: Tensor, temperature: float, alpha: float, multiplier: float
) -> None:
    method = TFKD("self", temperature, alpha, multiplier=multiplier)
    each = [
        -(1 - alpha) * torch.log(softmax(z)[y])
        + alpha * multiplier * temperature**2 * divergence(softmax(t, temperature), softmax(z, temperature))
        for z, y, t in zip(logits, labels, teacher, strict=True)
    ]
    actual = method.loss(logits, labels, teacher_logits=teacher)
    torch.testing.assert_close(sum(actual.parts.values()), actual.total.detach())
    expected = value_and_gradient(torch.stack(each).mean(), logits)
    torch.testing.assert_close(value_and_gradient(actual.total, logits), expected)
    assert torch.autograd.gradcheck(lambda z: method(z, labels, teacher_logits=teacher), (logits,))


def test_self_with_the_released_multiplier(logits: Tensor, labels: Tensor, teacher: Tensor) -> None:
    """The authors' code: the mean of the divergence's terms over samples and classes, times T^2 and m."""
    temperature, alpha, m = 6.0, 0.95, 50
    student, target = F.log_softmax(logits / temperature, 1), F.softmax(teacher / temperature, 1)
    terms = F.kl_div(student, target, reduction="none").mean() * temperature**2 * m
    expected = (1 - alpha) * F.cross_entropy(logits, labels) + alpha * terms
    actual = TFKD("self", temperature, alpha, multiplier=m / K)(logits, labels, teacher_logits=teacher)
    torch.testing.assert_close(value_and_gradient(actual, logits), value_and_gradient(expected, logits))


@pytest.mark.parametrize(("released", "literal"), [(False, literal_reg), (True, literal_released)])
@pytest.mark.parametrize(
    ("temperature", "alpha", "a"), [(40, 0.1, 0.95), (1, 0.5, 0.99), (20, 1, 0.3), (0.01, 0.5, 0.9)]
)
def test_reg_equals_the_equation_in_value_and_gradient(
    logits: Tensor, labels: Tensor, released: bool, literal, temperature: float, alpha: float, a: float
) -> None:
    if temperature < 1:
        with torch.no_grad():
            logits *= temperature  # keeps the literal exponentials finite
    method = TFKD("reg", temperature, alpha, a=a, released=released)
    each = [literal(z, y, temperature, alpha, a) for z, y in zip(logits, labels.tolist(), strict=True)]
    actual = method.loss(logits, labels)
    torch.testing.assert_close(sum(actual.parts.values()), actual.total.detach())
    expected = value_and_gradient(torch.stack(each).mean(), logits)
    torch.testing.assert_close(value_and_gradient(actual.total, logits), expected)
    if temperature >= 1:  # finite differences are too coarse for a softmax that cold
        assert torch.autograd.gradcheck(lambda z: method(z, labels), (logits,))


def test_reg_is_the_published_equation_for_whole_batches(logits: Tensor, labels: Tensor) -> None:
    powers = torch.stack([hand_made(y, 0.95) for y in labels.tolist()]) ** (1 / 40)
    student = F.log_softmax(logits / 40, 1)
    kl = F.kl_div(student, powers / powers.sum(1, keepdim=True), reduction="batchmean")
    expected = 0.9 * F.cross_entropy(logits, labels) + 0.1 * kl
    actual = TFKD("reg", released=False)(logits, labels)
    torch.testing.assert_close(value_and_gradient(actual, logits), value_and_gradient(expected, logits))


def test_reg_by_default_is_the_released_code_for_resnet_18_on_cifar100() -> None:
    """T 20, alpha 0.1, a 0.99, 100 times the mean over samples and classes; twelve epochs of two models."""
    draw = torch.Generator().manual_seed(3)
    images, labels = torch.randn(16, 8, dtype=torch.float64, generator=draw), torch.arange(16) * 6
    weights = [torch.randn(8, 100, dtype=torch.float64, generator=torch.Generator().manual_seed(4)) for _ in range(2)]
    for _ in range(12):
        found, wanted = ((images @ each).requires_grad_() for each in weights)
        teacher = torch.full((16, 100), 0.01 / 99, dtype=torch.float64)
        teacher[torch.arange(16), labels] = 0.99
        divergence = F.kl_div(wanted.log_softmax(1), (teacher / 20).softmax(1), reduction="none").mean() * 100
        literal = value_and_gradient(0.9 * F.cross_entropy(wanted, labels) + 0.1 * divergence, wanted)
        actual = value_and_gradient(TFKD("reg")(found, labels), found)
        torch.testing.assert_close(actual, literal, rtol=0, atol=1e-12)
        for each, (_, gradient) in zip(weights, (actual, literal), strict=True):
            each -= 0.5 * images.T @ gradient


@pytest.mark.parametrize("scale", [0.01, 1, 3, 10])
@pytest.mark.parametrize("classes", [10, 100, 1000])
def test_the_published_reg_is_next_to_nothing_and_the_released_is_not(classes: int, scale: float) -> None:
    """What the card says: the gradient of reg's term over that of cross-entropy, for models that are ever surer."""
    draw = torch.Generator().manual_seed(5)
    logits = torch.randn(256, classes, dtype=torch.float64, generator=draw).mul(scale).requires_grad_()
    labels = torch.randint(classes, (256,), generator=draw)
    _, plain = value_and_gradient(F.cross_entropy(logits, labels), logits)

    def share(method: TFKD) -> float:
        _, whole = value_and_gradient(method(logits, labels), logits)
        return float((whole - (1 - method.alpha) * plain).norm() / plain.norm())

    assert share(TFKD("reg", released=False)) < 0.0002
    assert share(TFKD("reg", 20, 0.3, a=0.91, released=False)) < 0.002
    if scale > 1:
        assert share(TFKD("reg")) > 0.03


def test_reg_smooths_the_label_by_about_alpha(logits: Tensor, labels: Tensor) -> None:
    """The released teacher is almost uniform, so the gradient is about that of a smoothed label."""
    _, smoothed = value_and_gradient(F.cross_entropy(logits, labels, label_smoothing=0.1), logits)
    _, found = value_and_gradient(TFKD("reg")(logits, labels), logits)
    torch.testing.assert_close(found, smoothed, rtol=0.05, atol=1e-3)


def test_self_without_t_squared(logits: Tensor, labels: Tensor, teacher: Tensor) -> None:
    """multiplier = 1 / T^2 is the published equation to the letter."""
    kl = F.kl_div(F.log_softmax(logits / 20, 1), F.softmax(teacher / 20, 1), reduction="batchmean")
    expected = 0.05 * F.cross_entropy(logits, labels) + 0.95 * kl
    actual = TFKD(multiplier=1 / 20**2)(logits, labels, teacher_logits=teacher)
    torch.testing.assert_close(value_and_gradient(actual, logits), value_and_gradient(expected, logits))


def test_reg_at_temperature_1_is_label_smoothing_up_to_a_constant(logits: Tensor, labels: Tensor) -> None:
    a, alpha = 0.9, 0.3
    epsilon = alpha * (1 - a) * K / (K - 1)
    entropy = -(a * math.log(a) + (1 - a) * math.log((1 - a) / (K - 1)))
    expected = F.cross_entropy(logits, labels, label_smoothing=epsilon) - alpha * entropy
    actual = TFKD("reg", 1.0, alpha, a=a, released=False)(logits, labels)
    torch.testing.assert_close(value_and_gradient(actual, logits), value_and_gradient(expected, logits))


@pytest.mark.parametrize(("released", "literal"), [(False, literal_reg), (True, literal_released)])
def test_reg_of_mixed_labels_where_distilled_and_not_ignored(
    logits: Tensor, labels: Tensor, released: bool, literal
) -> None:
    other, lam = labels.flip(0), torch.linspace(0, 1, B, dtype=torch.float64)
    distilled = torch.tensor([True, True, False, True, False, True])
    each = [
        share * literal(z, int(a), 40, 0.1 * taken, 0.95) + (1 - share) * literal(z, int(b), 40, 0.1 * taken, 0.95)
        for z, a, b, share, taken in zip(logits, labels, other, lam, distilled.tolist(), strict=True)
    ][1:]
    labels, other = labels.clone(), other.clone()
    labels[0] = other[0] = -100
    method = TFKD("reg", 40, 0.1, a=0.95, released=released)
    actual = method(logits, (labels, other, lam), distilled=distilled)
    expected = value_and_gradient(torch.stack(each).mean(), logits)
    torch.testing.assert_close(value_and_gradient(actual, logits), expected)


def test_self_of_mixed_labels_where_distilled(logits: Tensor, labels: Tensor, teacher: Tensor) -> None:
    other, lam = labels.flip(0), torch.linspace(0, 1, B, dtype=torch.float64)
    distilled = torch.tensor([True, True, False, True, False, True])
    each = [
        -(1 - 0.95 * taken) * (share * torch.log(softmax(z)[a]) + (1 - share) * torch.log(softmax(z)[b]))
        + 0.95 * taken * 20**2 * divergence(softmax(t, 20), softmax(z, 20))
        for z, t, a, b, share, taken in zip(logits, teacher, labels, other, lam, distilled.tolist(), strict=True)
    ]
    actual = TFKD()(logits, (labels, other, lam), teacher_logits=teacher, distilled=distilled)
    expected = value_and_gradient(torch.stack(each).mean(), logits)
    torch.testing.assert_close(value_and_gradient(actual, logits), expected)


@pytest.mark.parametrize("settings", [{"variant": "self"}, {"variant": "reg"}, {"variant": "reg", "released": False}])
def test_half_precision_is_reduced_in_float32(logits: Tensor, labels: Tensor, teacher: Tensor, settings: dict) -> None:
    method, teacher = TFKD(**settings), teacher.bfloat16()
    half = logits.detach().bfloat16().requires_grad_()
    full = half.detach().float().requires_grad_()
    expected, expected_gradient = value_and_gradient(method(full, labels, teacher_logits=teacher.float()), full)
    loss, gradient = value_and_gradient(method(half, labels, teacher_logits=teacher), half)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradient, expected_gradient.bfloat16(), rtol=0.02, atol=1e-4)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(method(half, labels, teacher_logits=teacher).detach(), expected)


@pytest.mark.parametrize("settings", [{"variant": "self"}, {"variant": "reg"}, {"variant": "reg", "released": False}])
def test_parts_of_a_batch_add_up(logits: Tensor, labels: Tensor, teacher: Tensor, settings: dict) -> None:
    method = TFKD(**settings)
    batches = zip(logits.split([2, 4]), labels.split([2, 4]), teacher.split([2, 4]), strict=True)
    parts = sum(method(z, y, teacher_logits=t) * len(y) / B for z, y, t in batches)
    expected = value_and_gradient(method(logits, labels, teacher_logits=teacher), logits)
    torch.testing.assert_close(value_and_gradient(parts, logits), expected)


def test_what_each_variant_needs_and_defaults_to() -> None:
    taught, made, published = TFKD(), TFKD("reg"), TFKD("reg", released=False)
    assert (taught.needs, taught.temperature, taught.alpha, taught.released) == ({"teacher_logits"}, 20, 0.95, False)
    assert (made.needs, made.temperature, made.alpha, made.a) == (frozenset(), 20, 0.1, 0.99)
    assert (made.multiplier, made.released) == (1, True)
    assert (published.temperature, published.alpha, published.a, published.released) == (40, 0.1, 0.95, False)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"variant": "both"}, "variant is 'both'; allowed are self, reg"),
        ({"temperature": -1.0}, "temperature must be a positive number, got -1"),
        ({"temperature": 0.0}, "temperature must be a positive number, got 0"),
        ({"alpha": 1.1}, r"alpha must lie in \[0, 1\], got 1.1"),
        ({"alpha": float("nan")}, r"alpha must lie in \[0, 1\], got nan"),
        ({"variant": "reg", "a": 1.0}, r"a must lie in \(0, 1\), got 1"),
        ({"variant": "reg", "a": 0.0}, r"a must lie in \(0, 1\), got 0"),
        ({"multiplier": 0.0}, "multiplier must be a positive number, got 0"),
        ({"released": True}, "released=True belongs to variant='reg'"),
    ],
)
def test_wrong_settings(settings: dict, message: str) -> None:
    with pytest.raises(PskdError, match=message):
        TFKD(**settings)


def test_wrong_use(logits: Tensor, labels: Tensor, teacher: Tensor) -> None:
    with pytest.raises(PskdError, match="teacher_logits is missing"):
        TFKD()(logits, labels)
    with pytest.raises(PskdError, match=r"teacher_logits has shape \(6, 4\), but logits have \(6, 5\)"):
        TFKD()(logits, labels, teacher_logits=teacher[:, :4])
    with pytest.raises(PskdError, match=r"a must lie in \(1/K, 1\), here K = 5, got 0.2"):
        TFKD("reg", a=0.2)(logits, labels)
