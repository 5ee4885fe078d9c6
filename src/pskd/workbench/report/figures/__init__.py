"""The figures of a report. To add one, write a file here with a function like this one; the registry finds it.

    @figure("my_kind", section="My section", place=25)
    def draw_mine(frame: Frame) -> Iterator[Figure]: ...

It yields nothing where the runs do not have the data.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from pskd.metrics.catalogue import METRICS
from pskd.workbench.registry import Registry
from pskd.workbench.report.figure import COLOURS, Figure, Palette
from pskd.workbench.study.results import Collection, Row, Scores, baseline_of, subject_of

LINES = len(COLOURS)  # rows that a figure shows at most
FRAMES = 6  # groups of a collection that get figures at most


@dataclass(frozen=True)
class Frame:
    """The rows that a figure shows, and what its title and its files' names end with."""

    collection: Collection
    rows: Sequence[Row]
    palette: Palette
    name: str = ""
    suffix: str = ""

    def title(self, text: str, *more: str) -> str:
        name = " · ".join(filter(None, (self.name, *more)))
        return f"{text}: {name}" if name else text


@dataclass(frozen=True)
class FigureKind:
    """A registered function, and where the page shows its figures.

    Args:
        section: the title under which they stand.
        place: figures are sorted by this number.
        of: what one call draws: a group of rows that are compared, one row, or the whole collection.
        about: how to read the section.
    """

    draw: Callable[[Frame], Iterator[Figure]]
    section: str
    place: int
    of: Literal["group", "row", "collection"] = "group"
    about: str = ""

    def __call__(self, frame: Frame) -> Iterator[Figure]:
        return self.draw(frame)


figure_kinds = Registry("figure", "pskd.workbench.report.figures", "pskd.figures")


def figure(kind: str, **about: Any) -> Callable[[Callable[[Frame], Iterator[Figure]]], FigureKind]:
    """A decorator that registers a function as a kind of figure; its keywords are those of ``FigureKind``."""
    return lambda draw: figure_kinds.register(kind)(FigureKind(draw, **about))


def make_figures(collection: Collection) -> list[Figure]:
    """All figures that the runs have data for, those that the study asks for first."""
    kinds = sorted((figure_kinds.find(name) for name in figure_kinds.names()), key=lambda kind: kind.place)
    shown = {name: _select(rows, collection.columns) for name, rows in list(collection.frames.items())[:FRAMES]}
    palette = Palette([row.short for rows, _ in shown.values() for row in rows])
    figures: list[Figure] = []
    for number, (name, (rows, selection)) in enumerate(shown.items()):
        suffix = f"-{number + 1}" if len(collection.frames) > 1 else ""
        group = Frame(collection, rows, palette, " · ".join(filter(None, (name, selection))), suffix)
        singles = [
            Frame(collection, [row], palette, " · ".join(filter(None, (name, row.short))), f"{suffix}-{place + 1}")
            for place, row in enumerate(rows)
        ]
        frames = {"group": [group], "row": singles, "collection": []}
        figures += (each for kind in kinds for frame in frames[kind.of] for each in kind(frame))
    whole = Frame(collection, collection.rows, palette)
    figures += (each for kind in kinds if kind.of == "collection" for each in kind(whole))
    order = {kind: place for place, kind in enumerate(collection.show.first)}
    return sorted(figures, key=lambda each: order.get(each.kind, len(order)))


def _select(rows: Sequence[Row], columns: Sequence[str]) -> tuple[Sequence[Row], str]:
    """The rows that fit into a figure, and which these are in words if some are left out.

    These are the baseline, the row that is compared with it, and the best others by the first column of which it is
    known which way is better. Without such a column they are the first others.
    """
    if len(rows) <= LINES:
        return rows, ""
    always = [baseline_of(rows), subject_of(rows)]
    others = [row for row in rows if row not in always]
    by = next((name for name in columns if METRICS[name].higher_is_better is not None), None)
    if by is not None:
        others.sort(key=lambda row: METRICS[by].cost(statistics.fmean(row.values(by))))
    shown = [*always, *others[: LINES - len(always)]]
    names, count = ", ".join(row.short for row in always), LINES - len(always)
    selection = f"{names} and the {'first' if by is None else 'best'} {count} of {len(others)} others"
    return [row for row in rows if row in shown], selection


def scores_of(row: Row) -> Scores | None:
    """The scores of all seeds together."""
    parts = [run.scores for run in row.runs if run.scores is not None]
    return Scores(*(torch.cat(part) for part in zip(*parts, strict=True))) if parts else None


def means_in_words(rows: Sequence[Row], metric: str) -> str:
    """`CE 23.01, PS-KD 15.88`, or `15.88` of a row alone."""
    means = {row.short: statistics.fmean(values) for row in rows if (values := row.values(metric))}
    return ", ".join(f"{name} {METRICS[metric].text(mean)}" for name, mean in means.items()).removeprefix(
        f"{rows[0].short} " if len(rows) == 1 else ""
    )
