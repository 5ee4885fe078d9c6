"""Figures of what a study varies: an ablation over one axis, a map over two."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pskd.metrics.catalogue import METRICS
from pskd.workbench.report.figure import COLOURS, Figure, slug
from pskd.workbench.report.figures import Frame, figure
from pskd.workbench.report.significance import ENOUGH_SEEDS, LEVEL, paired_chance, paired_differences, pass_holm
from pskd.workbench.study.results import Row, axis_name

BLUE, RED = "#3b82d6", "#d6453d"  # better, worse
READING = (
    "Mean difference over paired seeds; blue is better, red is worse; * differs from 0 (paired t-test,"
    f" {LEVEL:.0%}, Holm's correction over the map)."
)


class Difference(NamedTuple):
    """A row against the first of its group, over the seeds that both have."""

    mean: float
    chance: float | None  # the p-value of a paired t-test; None with too few seeds


@figure("ablation", section="Ablation", place=80, of="collection")
def draw_ablations(frame: Frame) -> Iterator[Figure]:
    """Each metric over the study's x axis: mean and standard deviation over seeds, and each seed as a dot."""
    show = frame.collection.show
    if show.x is None:
        return
    name = axis_name(show.x)
    rows = [row for row in frame.rows if show.x in row.labels]
    for metric in frame.collection.columns if rows else ():
        heading, values = METRICS[metric].heading, [(float(row.labels[show.x]), row.values(metric)) for row in rows]

        def draw(axes: Any, heading: str = heading, values: Sequence[tuple[float, list[float]]] = values) -> None:
            for x, seeds in values:
                axes.plot([x] * len(seeds), seeds, ".", color=COLOURS[0], alpha=0.6, markersize=4)
            means = [statistics.fmean(seeds) for _, seeds in values]
            spread = [statistics.stdev(seeds) if len(seeds) > 1 else 0.0 for _, seeds in values]
            xs = [x for x, _ in values]
            bars = axes.errorbar(xs, means, spread, color=COLOURS[5], marker="o", markersize=4, capsize=2)
            bars.lines[0].set_label(heading)
            axes.set(xlabel=name, ylabel=f"{show.split} {heading}")

        means = ", ".join(f"{x:g}: {statistics.fmean(seeds):.4g}" for x, seeds in values)
        title = f"{heading} over {name}"
        alt, caption = f"Mean {title}: {means}.", "Dots: seeds; bars: their standard deviation."
        yield Figure("ablation", f"ablation-{slug(metric)}", title, alt, draw, caption=caption)


@figure("map", section="Where it helps, and where it does not", place=90, of="collection", about=READING)
def draw_maps(frame: Frame) -> Iterator[Figure]:
    """For each metric, where a row is better than the first one of its group, and where it is worse.

    There is a map for each row but the first, if the study asks for maps. A single field gets no map, which would be
    one block of colour: the table has its number.
    """
    collection = frame.collection
    if not collection.show.map:
        return
    down, across = collection.show.map
    pairs = [(row, rows[0]) for rows in collection.frames.values() for row in rows[1:]]
    for short in dict.fromkeys(row.short for row, _ in pairs):
        for metric in collection.columns:
            fields = {
                (row.labels[down], row.labels[across]): difference
                for row, first in pairs
                if row.short == short and (difference := _compare(row, first, metric)) is not None
            }
            if len(fields) > 1 and METRICS[metric].higher_is_better is not None:
                yield _make_map(fields, metric, short, pairs[0][1].short, axis_name(down), axis_name(across))


def _make_map(
    fields: Mapping[tuple[str, str], Difference], metric: str, short: str, baseline: str, down: str, across: str
) -> Figure:
    downs, acrosses = (list(dict.fromkeys(labels[side] for labels in fields)) for side in (0, 1))
    significant = pass_holm({labels: each.chance for labels, each in fields.items() if each.chance is not None})
    stars = {labels: "*" if labels in significant else "" for labels in fields}
    about = METRICS[metric]

    def draw(axes: Any) -> None:
        from matplotlib.colors import LinearSegmentedColormap

        costs = np.full((len(downs), len(acrosses)), np.nan)
        for (row, column), each in fields.items():
            place = downs.index(row), acrosses.index(column)
            costs[place] = about.cost(each.mean)
            text = f"{'+' if each.mean > 0 else ''}{about.text(each.mean)}{stars[row, column]}"
            axes.text(*reversed(place), text, ha="center", va="center", color="black")
        limit = max(1e-12, float(np.nanmax(np.abs(costs))))
        colours = LinearSegmentedColormap.from_list("better or worse", [BLUE, "#f2f2f2", RED])
        axes.imshow(costs, cmap=colours, vmin=-limit, vmax=limit, aspect="auto")
        axes.set_xticks(range(len(acrosses)), acrosses)
        axes.set_yticks(range(len(downs)), downs)
        axes.set(xlabel=across, ylabel=down)

    words = "; ".join(
        f"{down} {row}, {across} {column}: {each.mean:+.4g}{stars[row, column]}"
        for (row, column), each in fields.items()
    )
    name, title = f"map-{slug(short)}-{slug(metric)}", f"{about.heading}: {short} minus {baseline}"
    return Figure("map", name, title, f"{READING} {words}.", draw)


def _compare(row: Row, first: Row, metric: str) -> Difference | None:
    own, other = (
        {run.seed: run.metrics[metric] for run in each.runs if metric in run.metrics} for each in (row, first)
    )
    if not (differences := paired_differences(own, other)):
        return None
    enough = len(differences) >= ENOUGH_SEEDS
    return Difference(statistics.fmean(differences), paired_chance(differences) if enough else None)
