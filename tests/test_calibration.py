"""Promises about confidence are kept: by statistics over many draws."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from pskd.calibration import conformal_threshold, fit_temperature, prediction_sets, reject_threshold, risk_bound
from pskd.errors import PskdError


def drawn(generator: torch.Generator, count: int, scale: float = 2.0, classes: int = 10) -> tuple[Tensor, Tensor]:
    """Logits that are calibrated: the label is drawn from their softmax."""
    logits = torch.randn(count, classes, generator=generator, dtype=torch.float64) * scale
    return logits, torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]


@pytest.mark.parametrize("sharpened", [0.4, 1.0, 2.5])
def test_a_temperature_is_found_again(sharpened: float) -> None:
    generator = torch.Generator().manual_seed(0)
    found = [fit_temperature(sharpened * z, y) for z, y in (drawn(generator, 2000) for _ in range(20))]
    assert sum(found) / 20 == pytest.approx(sharpened, rel=0.02)


def test_it_is_the_minimum_of_the_likelihood() -> None:
    logits, labels = drawn(torch.Generator().manual_seed(1), 500)
    best = fit_temperature(3 * logits, labels)

    def nll(temperature: float) -> float:
        return float(torch.nn.functional.cross_entropy(3 * logits / temperature, labels))

    assert all(nll(best) <= nll(best * factor) for factor in (0.98, 0.999, 1.001, 1.02))


def test_classes_that_are_ruled_out_do_not_matter() -> None:
    logits, labels = drawn(torch.Generator().manual_seed(2), 400, classes=4)
    wider = torch.cat((logits, torch.full((400, 3), -math.inf)), 1)
    assert fit_temperature(wider, labels) == pytest.approx(fit_temperature(logits, labels), rel=1e-12)
    with pytest.raises(PskdError, match="label's logit is not finite"):
        fit_temperature(wider, torch.full((400,), 6))
    assert fit_temperature(logits[:, :1], torch.zeros(400, dtype=torch.long)) == 1.0
    assert fit_temperature(logits, logits.argmax(1)) == pytest.approx(0.01)  # nothing wrong: as cold as is looked at


@pytest.mark.parametrize("coverage", [0.8, 0.95])
@pytest.mark.parametrize("randomised", [False, True])
def test_sets_hold_the_label_as_often_as_they_promise(coverage: float, randomised: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    held = []
    for _ in range(200):
        logits, labels = drawn(generator, 400)
        probs, noise = (1.7 * logits).softmax(1), torch.rand(400, generator=generator) if randomised else None
        first, second = (None, None) if noise is None else (noise[:200], noise[200:])
        threshold = conformal_threshold(probs[:200], labels[:200], coverage, noise=first)
        sets = prediction_sets(probs[200:], threshold, second)
        assert bool(sets.any(1).all())
        held.append(float(sets.gather(1, labels[200:, None]).double().mean()))
    mean, error = sum(held) / 200, math.sqrt(coverage * (1 - coverage) * (1 / 200 + 1 / 200) / 200)
    assert mean >= coverage - 4 * error
    assert mean <= coverage + 1 / 201 + 4 * error


@pytest.mark.parametrize("count", [10, 15])
def test_sets_from_a_few_samples_are_exact_too(count: int) -> None:
    """Where scores are all different, ``ceil((N + 1) * coverage)`` of N + 1 samples are inside: no more and no less."""
    generator = torch.Generator().manual_seed(6)
    draws = 1200
    inside = 0
    for _ in range(draws):
        logits, labels = drawn(generator, count + 1, scale=0.5)  # the likeliest class, which is always in, is rarely it
        probs, noise = logits.softmax(1), torch.rand(count + 1, generator=generator)
        threshold = conformal_threshold(probs[:count], labels[:count], 0.9, noise=noise[:count])
        inside += bool(prediction_sets(probs[count:], threshold, noise[count:])[0, labels[count]])
    exact = math.ceil((count + 1) * 0.9) / (count + 1)
    assert abs(inside / draws - exact) < 3.5 * math.sqrt(exact * (1 - exact) / draws)
    assert abs(math.ceil(count * 0.9) / (count + 1) - exact) > 0.06  # a rank one too low would be seen


def test_coverage_of_every_class_by_itself() -> None:
    generator = torch.Generator().manual_seed(4)
    held = torch.zeros(2, 3)
    for _ in range(150):
        logits, labels = drawn(generator, 1200, classes=3)
        logits = logits + torch.tensor([2.0, 0.0, 0.0])  # over-confident in the first class
        probs = logits.softmax(1)
        threshold = conformal_threshold(probs[:600], labels[:600], 0.9, by_class=True)
        inside = prediction_sets(probs[600:], threshold).gather(1, labels[600:, None])[:, 0]
        for c in range(3):
            held[:, c] += torch.tensor([float(inside[labels[600:] == c].sum()), float((labels[600:] == c).sum())])
    assert bool((held[0] / held[1] >= 0.89).all())
    few = conformal_threshold(probs[:30], torch.zeros(30, dtype=torch.long), 0.9, by_class=True)
    assert few[1:].tolist() == [math.inf, math.inf]


def test_the_risk_stays_below_its_bound() -> None:
    """In at least 1 - delta of 500 draws, and not by never answering."""
    generator = torch.Generator().manual_seed(5)
    failures, kept = 0, []
    for _ in range(500):
        logits, labels = drawn(generator, 6000, scale=4.0)
        probs = logits.softmax(1)
        threshold = reject_threshold(probs[:1000], labels[:1000], 0.1, delta=0.1)
        sure = probs[1000:].amax(1)
        keep = sure >= threshold
        kept.append(float(keep.double().mean()))
        # These probabilities are true, so the risk at this threshold is the mean of what they leave to other classes.
        failures += bool(keep.any()) and float((1 - sure[keep]).mean()) > 0.1
    assert failures <= 0.1 * 500
    assert sum(kept) / 500 > 0.3


@pytest.mark.parametrize("count", [16, 63, 64, 65])
def test_delta_is_shared_by_all_thresholds_that_the_search_looks_at(count: int) -> None:
    """Where nothing is wrong it moves on and on, one more time among 64 samples than among 63."""
    looked_at, low = 0, 0
    while low < count:
        looked_at, low = looked_at + 1, (low + count - 1) // 2 + 1
    level = 0.1 / looked_at
    just = 1 - level ** (1 / count)  # the rate that all of them together can promise, and no smaller one
    probs, labels = torch.linspace(0.5, 0.9, count)[:, None] * torch.tensor([1.0, 0.0]), torch.zeros(count).long()
    assert reject_threshold(probs, labels, just * 1.001, delta=0.1) >= 0.5  # no complaint
    with pytest.raises(PskdError, match=f"needs {count + 1} samples at least"):
        reject_threshold(probs, labels, just * 0.999, delta=0.1)


@pytest.mark.parametrize(("errors", "count", "delta"), [(0, 50, 0.05), (3, 40, 0.1), (10, 1000, 0.01), (39, 40, 0.05)])
def test_the_bound_is_the_exact_binomial_one(errors: int, count: int, delta: float) -> None:
    from scipy.stats import beta

    assert risk_bound(errors, count, delta) == pytest.approx(float(beta.ppf(1 - delta, errors + 1, count - errors)))


def test_too_little_is_said_with_what_is_needed() -> None:
    probs, labels = torch.full((5, 3), 1 / 3), torch.zeros(5, dtype=torch.long)
    with pytest.raises(PskdError, match=r"a coverage of 0.9 needs 9 samples at least, these are 5"):
        conformal_threshold(probs, labels, 0.9)
    with pytest.raises(PskdError, match=r"needs \d+ samples at least, even if none is wrong; these are 5"):
        reject_threshold(probs, labels, 0.05)
    with pytest.raises(PskdError, match=r"labels must be class indices \(5,\)"):
        fit_temperature(probs, labels[:3])
    with pytest.raises(PskdError, match=r"labels: 0\.\.7 is not inside 0\.\.2"):
        fit_temperature(probs, torch.tensor([0, 7, 0, 0, 0]))
    assert reject_threshold(torch.full((500, 3), 1 / 3), torch.arange(500) % 3, 0.1) == math.inf
