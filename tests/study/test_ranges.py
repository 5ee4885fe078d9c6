"""Ranges and lists of a command line."""

from __future__ import annotations

import random
import statistics

import pytest

from pskd.errors import PskdError
from pskd.workbench.study.ranges import SearchRange, parse


def test_ranges() -> None:
    assert parse("method.alpha=0.0:1.0:0.1") == SearchRange("method.alpha", [i / 10 for i in range(11)])
    assert parse("method.temperature=1..20") == SearchRange("method.temperature", list(range(1, 21)))
    assert parse("method=hard,ps_kd") == SearchRange("method", ["hard", "ps_kd"])
    assert parse("optim.lr=0.1,0.5") == SearchRange("optim.lr", [0.1, 0.5])
    assert parse("optim.lr=0.05") is None
    assert parse("method=ps_kd") is None
    assert parse("optim.lr=1e-3,1e-2") == SearchRange("optim.lr", [0.001, 0.01])
    assert parse("optim.milestones=[0.3,0.6],[0.5]") == SearchRange("optim.milestones", [[0.3, 0.6], [0.5]])
    assert parse("data.root='a,b',c") == SearchRange("data.root", ["a,b", "c"])


@pytest.mark.parametrize("value", ["../data", "~/data", "/a..b/c", "C:a:b", "[0.3,0.6]", "'a,b'", "1..x", "a~b", ""])
def test_anything_else_is_a_single_value(value: str) -> None:
    assert parse(f"key={value}") is None


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("alpha=1:0:0.1", "from 1 there are no steps of 0.1 to 0"),
        ("alpha=0:1:0", "from 0 there are no steps of 0 to 1"),
        ("seed=5..1", "1 comes before 5"),
        ("alpha=1~0.1", "0.1 is not above 1"),
        ("alpha=0:1:1e-9", "these are 1,000,000,001 values, the most allowed are 10,000"),
        ("alpha=0:1e300:1e-300", "these are far too many values"),
        ("seed=1..2000000000", "these are 2,000,000,000 values"),
    ],
)
def test_mistakes(word: str, message: str) -> None:
    with pytest.raises(PskdError, match=f"^{word}: {message}".replace(".", r"\.")):
        parse(word)


def test_draws_fill_their_range() -> None:
    draw = random.Random(0)
    broad, narrow, listed = parse("optim.lr=0.001~1"), parse("method.alpha=0.2~0.8"), parse("k=1,2,4")
    assert broad is not None
    assert narrow is not None
    assert listed is not None
    values = [broad.draw(draw) for _ in range(2000)]
    assert 0.001 <= min(values) <= max(values) <= 1
    assert statistics.median(values) == pytest.approx(0.001**0.5, rel=0.2)  # even on a logarithmic scale
    values = [narrow.draw(draw) for _ in range(2000)]
    assert 0.2 <= min(values) <= max(values) <= 0.8
    assert statistics.fmean(values) == pytest.approx(0.5, abs=0.02)
    assert {listed.draw(draw) for _ in range(100)} == {1, 2, 4}
