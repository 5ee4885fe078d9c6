"""Figures are drawn of whatever was recorded."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure as Canvas
from rows import make_row

from pskd.workbench.report.figure import Figure, Palette
from pskd.workbench.report.figures import Frame, figure, figure_kinds, make_figures
from pskd.workbench.report.figures.confidence import draw_reliability
from pskd.workbench.report.figures.curves import draw_curves
from pskd.workbench.report.figures.study import draw_maps
from pskd.workbench.report.page import make_sections
from pskd.workbench.report.significance import pass_holm
from pskd.workbench.study.cells import Show
from pskd.workbench.study.results import Collection, Row, Scores


def row(name: str, *records: dict[str, Any], seeds: int = 1) -> Row:
    """A row whose runs all have these records of epochs."""
    numbered = [{"epoch": place + 1, "seconds": 1.0, "lr": 0.1, **record} for place, record in enumerate(records)]
    numbers = {metric: [value] * seeds for metric, value in records[-1].get("test", {"top1_error": 1.0}).items()}
    return make_row(name, numbers, name, epochs=numbered)


def curves(*rows: Row, name: str = "") -> dict[str, Figure]:
    palette = Palette([each.short for each in rows])
    return {figure.name: figure for figure in draw_curves(Frame(Collection("", "", rows), rows, palette, name))}


def titles(*rows: Row) -> dict[str, str]:
    return {name: figure.title for name, figure in curves(*rows).items()}


def test_parts_of_the_loss_are_curves_where_there_are_several() -> None:
    both = {"train_loss": 0.33, "loss_parts": {"cross_entropy": 0.31, "distillation": 0.02}}
    one = {"train_loss": 0.31, "loss_parts": {"cross_entropy": 0.31}}
    assert titles(row("ce", one, one)) == {"curve-train-loss": "Training loss over the epochs"}
    found = titles(row("ce", one, one), row("mine", both, both))
    assert found["curve-loss-parts-distillation"] == "Training loss: distillation over the epochs: mine"
    assert "curve-loss-parts-cross-entropy" in found


def test_a_curve_has_two_epochs_and_the_split_that_it_says() -> None:
    """Runs with a validation split were evaluated on that, others on the test split: they are not one picture."""
    assert titles(row("ce", {"train_loss": 0.3, "test": {"ece": 4.0}})) == {}
    val, test = ({"train_loss": 1.0, split: {"ece": 4.0}} for split in ("val", "test"))
    assert titles(row("ce", val, val), row("mine", test, test)) == {
        "curve-train-loss": "Training loss over the epochs",
        "curve-val-ece": "Val ECE (%) over the epochs: ce",
        "curve-test-ece": "Test ECE (%) over the epochs: mine",
    }


def test_a_line_alone_is_named_and_what_is_cut_off_is_said() -> None:
    plain = [{"train_loss": loss} for loss in (9.0, 1.0, 0.9, 0.8, 0.7)]
    taught = [{"alpha_t": 0.1 * place, **record} for place, record in enumerate(plain)]
    rows = [row("ce", *plain), row("mine", *taught)]
    found = curves(*rows, name="CIFAR")
    assert found["curve-alpha-t"].title == "Alpha over the epochs: CIFAR · mine"
    assert found["curve-train-loss"].title == "Training loss over the epochs: CIFAR"
    assert found["curve-train-loss"].caption == "The first epochs are off the scale."
    assert found["curve-alpha-t"].caption == ""


def test_a_curve_says_how_many_seeds_its_lines_have() -> None:
    records = [{"train_loss": loss} for loss in (1.0, 0.9)]
    alone, three = row("ce", *records), row("mine", *records, seeds=3)
    captions = [curves(*rows)["curve-train-loss"].caption for rows in ([alone], [three], [alone, three])]
    assert captions == ["", *(f"Mean of {seeds} seeds; band: lowest to highest." for seeds in ("3", "1 to 3"))]


def scored(name: str, error: float) -> Row:
    scores = Scores(torch.linspace(0.1, 0.9, 50), torch.arange(50) % 2 == 0)
    return make_row(name, {"top1_error": [error], "ece": [2.0], "aurc": [300.0]}, name, scores=scores)


def test_of_many_rows_the_baseline_and_ours_are_drawn_in_colours_of_their_own() -> None:
    others = [scored(f"method {place}", 40 + place) for place in range(20)]
    found = make_figures(Collection("", "", [scored("hard", 99), *others, scored("ps_kd", 98)]))
    figure = next(each for each in found if each.kind == "calibration")
    assert figure.title == "Calibration: plain cross-entropy, PS-KD and the best 9 of 20 others"
    axes = Canvas().add_subplot()
    figure.draw(axes)
    lines = [line for line in axes.get_lines() if not line.get_label().startswith("_")]
    best = [f"method {place}" for place in range(9)]
    assert [line.get_label() for line in lines] == ["plain cross-entropy", *best, "PS-KD"]
    assert len({line.get_color() for line in lines}) == len(lines)
    assert "Reliability: PS-KD" in {each.title for each in found}


def test_a_long_legend_takes_no_room_from_the_picture() -> None:
    def height(lines: int) -> float:
        def draw(axes: Any) -> None:
            for place in range(lines):
                axes.plot([0, 1], [0, place], label=f"a rather long name of the method {place}")

        said = re.search('data-hover="([^"]*)"', Figure("", "one", "", "", draw).svg())
        assert said
        _, top, _, bottom = json.loads(html.unescape(said[1]))["box"]
        return bottom - top

    assert height(11) == height(2)


def test_bins_of_few_samples_are_pale_and_show_no_gap() -> None:
    scores = Scores(torch.tensor([0.95] * 20 + [0.55]), torch.tensor([True] * 19 + [False, True]))
    alone = make_row("ce", {"ece": [2.0]}, scores=scores)
    (figure,) = draw_reliability(Frame(Collection("", "", [alone]), [alone], Palette(["ce"])))
    axes = Canvas().add_subplot()
    figure.draw(axes)
    bars, gaps = (container.patches for container in axes.containers)
    assert [bar.get_alpha() for bar in bars] == [0.2, 0.65]
    assert [round(gap.get_x(), 1) for gap in gaps] == [0.9]
    assert [text.get_text() for text in axes.texts] == ["1", "20"]


def test_an_axis_of_epochs_has_whole_numbers() -> None:
    record = {"train_loss": 1.0}
    (figure,) = curves(row("ce", record, record, record)).values()
    canvas = Canvas()
    figure.draw(canvas.add_subplot())
    assert all(float(tick).is_integer() for tick in canvas.axes[0].get_xticks())


def test_what_a_method_or_a_task_of_ones_own_records_is_titles() -> None:
    record = {"train_loss": 1.0, "my/weight": 2, "note": "x", "test": {"my_score": 3.0, "top1_error": 4.0, "brier": 1}}
    assert titles(row("mine", record, record)) == {
        "curve-train-loss": "Training loss over the epochs",
        "curve-my-weight": "My/weight over the epochs",
        "curve-top1-error": "Test Top-1 err (%) over the epochs",
        "curve-my-score": "Test my_score over the epochs",
    }


def test_a_figure_needs_nothing_but_a_registered_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page sorts it by its place, under its own title."""
    monkeypatch.setattr(figure_kinds, "_things", dict(figure_kinds._things))

    @figure("mine", section="My section", place=41, of="row", about="How to read it.")
    def draw_mine(frame: Frame) -> Iterator[Figure]:
        yield Figure("mine", f"mine{frame.suffix}", frame.title("Mine"), "alt", lambda axes: None)

    rows = [row(name, *[{"train_loss": 1.0}] * 2) for name in ("a", "b")]
    figures = make_figures(Collection("", "", rows))
    assert [each.title for each in figures] == ["Training loss over the epochs", "Mine: a", "Mine: b"]
    _, mine = make_sections([], figures)
    assert (mine.title, mine.about, [each.name for each in mine.figures]) == (
        "My section",
        "How to read it.",
        ["mine-1", "mine-2"],
    )
    asked = make_figures(Collection("", "", rows, Show(first=("mine",))))
    assert [each.kind for each in asked] == ["mine", "mine", "curves"]


def test_many_rows_without_a_known_best_are_the_first_ones() -> None:
    rows = [row(str(place), *[{"train_loss": 1.0, "test": {"mine": float(place)}}] * 2) for place in range(12)]
    titles = [figure.title for figure in make_figures(Collection("", "", rows))]
    assert "Training loss over the epochs: 0, 11 and the first 9 of 10 others" in titles


def test_a_line_without_a_point_is_no_mistake() -> None:
    """A curve of which nothing is known has no markers to choose a few of."""

    def draw(axes: Any) -> None:
        style = Palette(["one", "other"])
        axes.plot([1, 2, 3], [float("nan")] * 3, label="one", **style.line("one"))
        axes.plot([1, 2, 3], [1.0, 2.0, 3.0], label="other", **style.line("other"))

    assert "<svg" in Figure("kind", "slug", "title", "alt", draw).svg()


ERRORS: dict[tuple[str, str, str], list[float]] = {
    ("10", "30", "0.0"): [20.0, 21.0, 22.0, 23.0],
    ("10", "30", "0.8"): [23.0, 24.1, 24.9, 26.0],  # worse in every seed
    ("10", "100", "0.0"): [10.0, 12.0, 11.0, 13.0],
    ("10", "100", "0.8"): [11.0, 11.0, 12.0, 12.0],  # now this, now that
}


def maps(show: Show, epochs_shown: tuple[str, ...] = ("30", "100")) -> list[Figure]:
    rows = []
    for (images, epochs, alpha), values in ERRORS.items():
        if epochs not in epochs_shown:
            continue
        labels = {"data.per_class": images, "epochs": epochs, "alpha": alpha}
        rows.append(make_row(labels, {"top1_error": values}))
    return list(draw_maps(Frame(Collection("map", "", rows, show), rows, Palette([]))))


def test_a_map_of_paired_differences() -> None:
    (figure,) = maps(Show(map=("data.per_class", "epochs")))
    assert figure.title == "Top-1 err (%): alpha 0.8 minus alpha 0.0"
    assert "training images a class 10, epochs 30: +3*" in figure.alt
    assert "training images a class 10, epochs 100: +0." in figure.alt.replace("+0;", "+0.;")
    assert "epochs 100: +0*" not in figure.alt
    assert "<svg" in figure.svg()
    assert maps(Show()) == []


def test_no_map_of_a_single_field() -> None:
    assert maps(Show(map=("data.per_class", "epochs")), epochs_shown=("30",)) == []


@pytest.mark.parametrize(
    ("chances", "passed"),
    [({}, set()), ({"a": 0.04}, {"a"}), ({"a": 0.04, "b": 0.01}, {"a", "b"}), ({"a": 0.04, "b": 0.03}, set())],
)
def test_holm(chances: dict[str, float], passed: set[str]) -> None:
    assert pass_holm(chances) == passed
