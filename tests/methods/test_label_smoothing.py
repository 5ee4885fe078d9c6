"""Label smoothing against its equation, written out sample by sample in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from helpers import value_and_gradient
from torch import Tensor

from pskd.errors import PskdError
from pskd.methods.label_smoothing import LabelSmoothing

B, K = 7, 5


def smoothed(label: int, epsilon: float, others_only: bool) -> Tensor:
    """The target of one sample: (K)."""
    if others_only:
        return torch.tensor([1 - epsilon if k == label else epsilon / (K - 1) for k in range(K)], dtype=torch.float64)
    return torch.tensor([(1 - epsilon) * (k == label) + epsilon / K for k in range(K)], dtype=torch.float64)


def cross_entropy(target: Tensor, z: Tensor) -> Tensor:
    p = torch.exp(z) / torch.exp(z).sum()
    return -(target * torch.log(p)).sum()


@pytest.fixture
def logits() -> Tensor:
    return torch.randn(B, K, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).mul(3).requires_grad_()


@pytest.fixture
def labels() -> Tensor:
    return torch.tensor([0, 4, 2, 2, 1, 3, 0])


@pytest.mark.parametrize("others_only", [False, True])
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.9])
def test_equals_the_equation_in_value_and_gradient(
    logits: Tensor, labels: Tensor, epsilon: float, others_only: bool
) -> None:
    literal = sum(cross_entropy(smoothed(int(y), epsilon, others_only), z) for y, z in zip(labels, logits, strict=True))
    expected = value_and_gradient(literal / B, logits)
    method = LabelSmoothing(epsilon, others_only)
    torch.testing.assert_close(value_and_gradient(method(logits, labels), logits), expected)
    assert torch.autograd.gradcheck(lambda z: method(z, labels), (logits,))


def test_both_labels_of_a_mixed_pair_are_smoothed(logits: Tensor, labels: Tensor) -> None:
    other, lam = labels.flip(0), torch.linspace(0, 1, B, dtype=torch.float64)
    for others_only in (False, True):
        literal = torch.stack(
            [
                cross_entropy(
                    share * smoothed(int(a), 0.1, others_only) + (1 - share) * smoothed(int(b), 0.1, others_only), z
                )
                for a, b, share, z in zip(labels, other, lam, logits, strict=True)
            ]
        )
        expected = value_and_gradient(literal.mean(), logits)
        mixed = LabelSmoothing(0.1, others_only)(logits, (labels, other, lam))
        torch.testing.assert_close(value_and_gradient(mixed, logits), expected)


def test_equals_torch_for_dense_shapes_and_ignored_labels() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(3, K, 4, 2, dtype=torch.float64, generator=generator, requires_grad=True)
    labels = torch.randint(0, K, (3, 4, 2), generator=generator)
    labels[0, 1] = -100
    expected = value_and_gradient(F.cross_entropy(logits, labels, label_smoothing=0.2), logits)
    torch.testing.assert_close(value_and_gradient(LabelSmoothing(0.2)(logits, labels), logits), expected)
    assert (expected[1][0, :, 1] == 0).all()


def test_where_not_distilled_the_label_stays_hard(logits: Tensor, labels: Tensor) -> None:
    distilled = torch.tensor([True, False, True, True, False, False, True])
    smooth = F.cross_entropy(logits, labels, label_smoothing=0.3, reduction="none")
    expected = torch.where(distilled, smooth, F.cross_entropy(logits, labels, reduction="none")).mean()
    actual = LabelSmoothing(0.3)(logits, labels, distilled=distilled)
    torch.testing.assert_close(value_and_gradient(actual, logits), value_and_gradient(expected, logits))


def test_half_precision_is_reduced_in_float32(logits: Tensor, labels: Tensor) -> None:
    half = logits.detach().bfloat16().requires_grad_()
    full = half.detach().float().requires_grad_()
    method = LabelSmoothing(0.1)
    loss, gradient = value_and_gradient(method(half, labels), half)
    expected, expected_gradient = value_and_gradient(method(full, labels), full)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradient, expected_gradient.bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(method(half, labels).detach(), expected)


def test_parts_of_a_batch_add_up(logits: Tensor, labels: Tensor) -> None:
    method = LabelSmoothing(0.1)
    parts = sum(method(z, y) * len(y) / B for z, y in zip(logits.split([3, 4]), labels.split([3, 4]), strict=True))
    torch.testing.assert_close(value_and_gradient(parts, logits), value_and_gradient(method(logits, labels), logits))


@pytest.mark.parametrize("epsilon", [-0.1, 1.0, float("nan")])
def test_wrong_epsilon(epsilon: float) -> None:
    with pytest.raises(PskdError, match=r"epsilon must lie in \[0, 1\)"):
        LabelSmoothing(epsilon)


def test_wrong_classes(logits: Tensor, labels: Tensor) -> None:
    with pytest.raises(PskdError, match=r"targets: 1 class indices lie outside 0\.\.4"):
        LabelSmoothing()(logits, torch.where(labels == 1, K, labels))
    with pytest.raises(PskdError, match="others_only needs 2 classes"):
        LabelSmoothing(others_only=True)(logits[:, :1], torch.zeros_like(labels))


def test_mass_on_masked_classes_is_dropped(logits: Tensor, labels: Tensor) -> None:
    masked = torch.zeros(B, K, dtype=torch.bool)
    masked[0, 2] = masked[1, 0] = masked[1, 1] = True
    hidden = logits.detach().masked_fill(masked, -torch.inf).requires_grad_()
    q = torch.stack([smoothed(int(y), 0.2, False) for y in labels]).masked_fill(masked, 0)
    expected = -(q * hidden.log_softmax(1).masked_fill(masked, 0)).sum(1).mean()
    actual = LabelSmoothing(0.2)(hidden, labels)
    torch.testing.assert_close(value_and_gradient(actual, hidden), value_and_gradient(expected, hidden))
