"""Runs on different data are never compared."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pskd.workbench.study.results import Collection, Row, order_axes
from pskd.workbench.study.same_data import DataOf, group, have_same_data


def data(
    train: str = "a", test: str | None = "t", seed: int = 0, settings: str = "{}", root: str | None = None
) -> DataOf:
    return DataOf("classification", test, train, (settings, root), seed)


def test_one_seed_has_the_same_samples() -> None:
    assert data().same(data())
    assert not data().same(data(train="b"))
    assert not data().same(data(test="u"))
    assert not data().same(data()._replace(task="detection"))
    assert data(train="b").same_test(data())


def test_other_seeds_may_have_drawn_others_by_the_same_settings() -> None:
    assert data("a", seed=0).same(data("b", seed=1))
    assert not data("a", seed=0, settings="10 a class").same(data("b", seed=1, settings="30 a class"))
    assert data("a", seed=0, root="here").same(data("b", seed=1, root="moved"))  # it is the same test set
    assert data("a", "t", seed=0, root="here").same(data("b", "u", seed=1, root="here"))  # also drawn by the seed
    assert not data("a", "t", seed=0, root="cats").same(data("b", "u", seed=1, root="dogs"))


def test_a_task_that_does_not_keep_its_test_set_is_known_by_its_training_set() -> None:
    assert data(test=None).same(data(test=None))
    assert not data(test=None).same(data(train="b", test=None))
    assert not data(test=None).same(data())


def test_rows_are_compared_by_the_seeds_that_both_have() -> None:
    small = [data("s0", seed=0, settings="10"), data("s1", seed=1, settings="10")]
    large = [data("l0", seed=0, settings="30"), data("l1", seed=1, settings="30")]
    assert have_same_data(small, small[::-1], DataOf.same)
    assert not have_same_data(small, large, DataOf.same)
    assert have_same_data(small, large, DataOf.same_test)
    assert group([1, 2, 11, 3, 12], lambda one, other: abs(one - other) < 5) == [[1, 2, 3], [11, 12]]


def row(train: str, **labels: str) -> Row:
    runs: Any = [SimpleNamespace(data=data(train), config=SimpleNamespace(method=SimpleNamespace(name="ps_kd")))]
    return Row(labels, runs)


def frames(*rows: Row) -> dict[str, list[str]]:
    frames = Collection("", "", order_axes(rows)).frames
    return {frame: [each.short for each in own] for frame, own in frames.items()}


def test_a_group_of_a_study_has_one_training_set_whatever_the_order_of_the_axes() -> None:
    rows = [row(size, method=method, size=size) for method in ("CE", "PS-KD") for size in ("10", "30")]
    assert frames(*rows) == {"size 10": ["CE", "PS-KD"], "size 30": ["CE", "PS-KD"]}
    rows = [row("a", alpha=alpha) for alpha in ("0.0", "0.8")]
    assert frames(*rows) == {"": ["alpha 0.0", "alpha 0.8"]}


def test_rows_that_differ_in_nothing_but_data_are_alone() -> None:
    assert frames(row("10", size="10"), row("30", size="30")) == {"size 10": ["PS-KD"], "size 30": ["PS-KD"]}
    assert frames(row("10")) == {"": ["PS-KD"]}  # seeds alone
