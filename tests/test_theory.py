"""The equations of the paper's method section, on random predictions in float64.

p_t is the prediction of epoch t, p_before the one of epoch t-1, y the label, GT the target class.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pskd import soft_cross_entropy

SAMPLES, CLASSES = 400, 6


class Case(NamedTuple):
    logits: Tensor
    p_t: Tensor
    p_before: Tensor
    y: Tensor
    one_hot: Tensor


@pytest.fixture(scope="module")
def case() -> Case:
    """A model that has improved a little: its logits of epoch t are those of epoch t-1, moved towards the label."""
    generator = torch.Generator().manual_seed(0)
    before = torch.randn(SAMPLES, CLASSES, generator=generator, dtype=torch.float64)
    y = torch.randint(CLASSES, (SAMPLES,), generator=generator)
    one_hot = F.one_hot(y, CLASSES).double()
    noise = 0.3 * torch.randn(SAMPLES, CLASSES, generator=generator, dtype=torch.float64)
    logits = (before + 0.5 * one_hot + noise).requires_grad_()
    return Case(logits, logits.detach().softmax(1), before.softmax(1), y, one_hot)


def gradient(case: Case, alpha: float) -> Tensor:
    loss = soft_cross_entropy(case.logits, case.y, case.p_before, alpha, reduction="sum")
    return torch.autograd.grad(loss, case.logits)[0]


def meets_the_condition(case: Case, alpha: float) -> Tensor:
    """alpha <= min over the other classes of p_t,i / p_(t-1),i, sample by sample."""
    ratios = (case.p_t / case.p_before).masked_fill(case.one_hot.bool(), torch.inf)
    return alpha <= ratios.min(1).values


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.8, 1.0])
def test_gradient(case: Case, alpha: float) -> None:
    expected = (1 - alpha) * (case.p_t - case.one_hot) + alpha * (case.p_t - case.p_before)
    torch.testing.assert_close(gradient(case, alpha), expected)


@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.8])
def test_l1_norm_and_rescaling_factor_under_their_condition(case: Case, alpha: float) -> None:
    at_label = case.one_hot.bool()
    error_t, error_before = 1 - case.p_t[at_label], 1 - case.p_before[at_label]
    norms = gradient(case, alpha).abs().sum(1)
    plain = gradient(case, 0.0).abs().sum(1)
    torch.testing.assert_close(plain, 2 * error_t)

    holds = meets_the_condition(case, alpha)
    assert 0 < holds.double().mean() <= 1
    torch.testing.assert_close(norms[holds], (2 * error_t - 2 * alpha * error_before)[holds])
    torch.testing.assert_close((norms / plain)[holds], (1 - alpha * error_before / error_t)[holds])


@pytest.mark.parametrize("alpha", [0.5, 0.8])
def test_outside_of_the_condition_the_norm_is_larger(case: Case, alpha: float) -> None:
    """A class that has lost more than alpha of its probability gets a gradient of the other sign."""
    at_label = case.one_hot.bool()
    claimed = 2 * (1 - case.p_t[at_label]) - 2 * alpha * (1 - case.p_before[at_label])
    fails = ~meets_the_condition(case, alpha)
    assert fails.any()
    assert (gradient(case, alpha).abs().sum(1) > claimed + 1e-9)[fails].all()


def test_a_smaller_alpha_is_met_by_more_samples(case: Case) -> None:
    """Why alpha starts small: the share of samples with the effect falls as alpha grows."""
    shares = [float(meets_the_condition(case, alpha).double().mean()) for alpha in (0.1, 0.4, 0.7, 1.0)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == 1
    assert shares[-1] < 0.5


@pytest.mark.parametrize("alpha", [0.0, 0.4, 1.0])
def test_distillation_at_temperature_one_is_a_softened_target(case: Case, alpha: float) -> None:
    """Eq. 2 at tau = 1 is Eq. 3, for any teacher."""
    log_p = torch.log_softmax(case.logits, 1)
    to_label = -(case.one_hot * log_p).sum(1)
    to_teacher = -(case.p_before * log_p).sum(1)
    ours = soft_cross_entropy(case.logits, case.y, case.p_before, alpha, reduction="none")
    torch.testing.assert_close(ours, (1 - alpha) * to_label + alpha * to_teacher)


@pytest.mark.parametrize("epsilon", [0.1, 0.5])
def test_label_smoothing_is_a_uniform_teacher(case: Case, epsilon: float) -> None:
    uniform = torch.full_like(case.p_before, 1 / CLASSES)
    ours = soft_cross_entropy(case.logits, case.y, uniform, epsilon)
    torch.testing.assert_close(ours, F.cross_entropy(case.logits, case.y, label_smoothing=epsilon))
