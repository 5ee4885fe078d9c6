"""A map says by how much a row is better or worse than the first one of its group, and where that is sure."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pskd.workbench.report.maps import maps
from pskd.workbench.report.significance import pass_holm
from pskd.workbench.study.cells import Show
from pskd.workbench.study.results import Collection, Row

ERRORS: dict[tuple[str, str, str], list[float]] = {
    ("10", "30", "0.0"): [20.0, 21.0, 22.0, 23.0],
    ("10", "30", "0.8"): [23.0, 24.1, 24.9, 26.0],  # worse in every seed
    ("10", "100", "0.0"): [10.0, 12.0, 11.0, 13.0],
    ("10", "100", "0.8"): [11.0, 11.0, 12.0, 12.0],  # now this, now that
}


def collection(show: Show, epochs_shown: tuple[str, ...] = ("30", "100")) -> Collection:
    rows = []
    for (images, epochs, alpha), values in ERRORS.items():
        if epochs not in epochs_shown:
            continue
        runs: Any = [SimpleNamespace(seed=seed, metrics={"top1_error": value}) for seed, value in enumerate(values)]
        rows.append(Row({"data.per_class": images, "epochs": epochs, "alpha": alpha}, runs))
    return Collection("map", "", rows, show)


def test_a_map_of_paired_differences() -> None:
    (figure,) = maps(collection(Show(map=("data.per_class", "epochs"))))
    assert figure.title == "Top-1 err (%): alpha 0.8 minus alpha 0.0"
    assert "training images a class 10, epochs 30: +3*" in figure.alt
    assert "training images a class 10, epochs 100: +0." in figure.alt.replace("+0;", "+0.;")
    assert "epochs 100: +0*" not in figure.alt
    assert "<svg" in figure.svg()
    assert list(maps(collection(Show()))) == []


def test_no_map_of_a_single_field() -> None:
    assert list(maps(collection(Show(map=("data.per_class", "epochs")), epochs_shown=("30",)))) == []


@pytest.mark.parametrize(
    ("chances", "passed"),
    [({}, set()), ({"a": 0.04}, {"a"}), ({"a": 0.04, "b": 0.01}, {"a", "b"}), ({"a": 0.04, "b": 0.03}, set())],
)
def test_holm(chances: dict[str, float], passed: set[str]) -> None:
    assert pass_holm(chances) == passed
