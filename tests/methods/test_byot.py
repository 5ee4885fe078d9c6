"""BYOT: the heads and their features learn, the end of the network teaches and learns from its labels alone."""

from __future__ import annotations

import torch
from torch import Tensor

from pskd.methods import BYOT


def written_out(z: Tensor, heads: list[Tensor], features: list[Tensor], labels: Tensor) -> Tensor:
    """Position by position, with the default settings: T = 3, alpha = 0.1, beta = 1e-6 of the sum over 128 samples."""
    total = torch.zeros((), dtype=torch.float64)
    for i, label in enumerate(labels.tolist()):
        total = total - z[i].log_softmax(0)[label]
        teacher = (z[i].detach() / 3).softmax(0)
        for head, own in zip(heads, features[:-1], strict=True):
            taught = (teacher * (teacher.log() - (head[i] / 3).log_softmax(0))).sum()
            end = features[-1][i].detach()
            hint = sum((f - e) ** 2 for f, e in zip(own[i], end, strict=True) if f > 0 or e > 0)
            total = total - 0.9 * head[i].log_softmax(0)[label] + 0.1 * 9 * taught + 128e-6 * hint
    return total / len(labels)


def test_equals_the_equation_with_all_its_gradients(logits: Tensor, labels: Tensor) -> None:
    draw = torch.Generator().manual_seed(2)
    heads = [torch.randn(logits.shape, dtype=torch.float64, generator=draw).mul(3).requires_grad_() for _ in range(2)]
    features = [torch.randn(len(labels), 4, dtype=torch.float64, generator=draw).requires_grad_() for _ in range(3)]
    leaves = [logits, *heads, *features]
    found = BYOT()(logits, labels, head_logits=heads, head_features=features)
    wanted = written_out(logits, heads, features, labels)
    torch.testing.assert_close(found, wanted)
    slopes = [torch.autograd.grad(loss, leaves, allow_unused=True) for loss in (found, wanted)]
    for own, literal in zip(*slopes, strict=True):
        torch.testing.assert_close(own, literal)
    assert slopes[0][-1] is None  # the end's features are not drawn to the heads'
    assert all(slope is not None and bool(slope.any()) for slope in slopes[0][:-1])


def test_features_where_both_are_below_zero_do_not_count() -> None:
    """As in the released code: ``(f - end)^2 * ((f > 0) | (end > 0))``."""
    f = torch.tensor([[-1.0, -1.0, 2.0, 2.0]], dtype=torch.float64).requires_grad_()
    end = torch.tensor([[-3.0, 3.0, -3.0, 3.0]], dtype=torch.float64)
    logits, label = torch.zeros(1, 5, dtype=torch.float64), torch.tensor([0])
    with_features, without = (
        BYOT(beta=1.0)(logits, label, head_logits=[logits], head_features=given) for given in ([f, end], None)
    )
    hint = with_features - without
    torch.testing.assert_close(hint.detach(), torch.tensor(16.0 + 25 + 1, dtype=torch.float64))
    (slope,) = torch.autograd.grad(hint, f)
    torch.testing.assert_close(slope, torch.tensor([[0.0, -8.0, 10.0, -2.0]], dtype=torch.float64))
