"""One catalogue says what a metric is called, which way is better and which one stands for a result."""

from __future__ import annotations

import pytest

from pskd.metrics.catalogue import FACTORS, METRICS, Metric, metrics_of, paper_columns, primary
from pskd.workbench.report.tables import comparison, result_lines

OWN = {"iou{x}": 0.5, "seed": 3, "epoch": 9, "name": "x", "flag": True, "top1_error": 20.0, "brier": 0.25}


def test_every_entry_is_sound() -> None:
    assert all(metric.unit in FACTORS and metric.higher_is_better is not None for metric in METRICS.values())
    assert METRICS["ece"].heading == "ECE (%)"
    assert METRICS["bleu"].better(2, 1)
    assert METRICS["nll"].better(1, 2)


def test_a_metric_of_ones_own_is_shown_and_nothing_is_called_best() -> None:
    assert metrics_of(OWN) == ["top1_error", "brier", "iou{x}"]
    assert result_lines(OWN) == ["Top-1 err (%)       20.00", "Brier              0.2500", "iou{x}                0.5"]
    assert METRICS["iou{x}"].best([1.0, 2.0]) is None
    assert METRICS["iou{x}"].line is not None
    assert METRICS["iou{x}"].line.format(0.5) == "iou{x} 0.5"
    assert "iou{x}" not in METRICS  # asking adds nothing


def test_more_can_be_said_about_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METRICS, "mine", Metric("My score", "", "{:.1f}", True, in_paper=True, primary=True))
    results = {"a": {"mine": 1.0}, "b": {"mine": 2.0}}
    assert primary(results["a"]) == "mine"
    assert [line.split() for line in comparison(results)] == [["My", "score"], ["a", "1.0"], ["b", "2.0*"]]


@pytest.mark.parametrize(
    ("result", "name"),
    [
        ({"nll": 1.0, "ece": 2.0, "top1_error": 3.0}, "top1_error"),
        ({"chrf": 1.0, "bleu": 2.0}, "bleu"),
        ({"coco_ap": 1.0, "map50": 2.0}, "map50"),
        ({"mine": 1.0}, None),
    ],
)
def test_the_primary_metric_does_not_depend_on_an_order(result: dict[str, float], name: str | None) -> None:
    assert primary(result) == name


def test_the_columns_of_the_paper() -> None:
    classifier = dict.fromkeys(("brier", "e_aurc", "aurc", "ece", "nll", "top5_error", "top1_error"), 1.0)
    assert paper_columns(classifier) == ["top1_error", "top5_error", "nll", "ece", "aurc"]
