"""A study of two conditions as a map: where a row is better than the first one of its frame, and where it is worse."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from pskd.metrics.catalogue import METRICS
from pskd.workbench.report.figure import Figure, slug
from pskd.workbench.report.significance import ENOUGH_SEEDS, LEVEL, paired_chance, pass_holm
from pskd.workbench.study.results import Collection, Row, axis_name

BETTER, WORSE = "#3b82d6", "#d6453d"

READING = (
    "Mean difference over paired seeds; blue is better, red is worse; * differs from 0 (paired t-test,"
    f" {LEVEL:.0%}, Holm's correction over the map)."
)


class Difference(NamedTuple):
    """A row against the first of its frame, over the seeds that both have."""

    mean: float
    chance: float | None  # the p-value of a paired t-test; None with too few seeds


def maps(collection: Collection) -> Iterator[Figure]:
    """One map for each metric and each row of a frame but the first, if the study asks for maps.

    None of a single field, which would be one block of colour: the table has its number.
    """
    if not collection.show.map:
        return
    down, across = collection.show.map
    compared = dict.fromkeys(row.short for rows in collection.frames.values() for row in rows[1:])
    for short in compared:
        for metric in collection.columns:
            found = {
                (row.labels[down], row.labels[across]): difference
                for rows in collection.frames.values()
                for row in rows[1:]
                if row.short == short and (difference := _difference(row, rows[0], metric)) is not None
            }
            if len(found) > 1 and METRICS[metric].higher_is_better is not None:
                baseline = next(iter(collection.frames.values()))[0].short
                yield _map(found, metric, short, baseline, (axis_name(down), axis_name(across)))


def _map(
    found: dict[tuple[str, str], Difference],
    metric: str,
    short: str,
    baseline: str,
    axes_names: tuple[str, str],
) -> Figure:
    downs, acrosses = (list(dict.fromkeys(labels[side] for labels in found)) for side in (0, 1))
    sure = pass_holm({labels: each.chance for labels, each in found.items() if each.chance is not None})
    about = METRICS[metric]

    def draw(axes: Any) -> None:
        from matplotlib.colors import LinearSegmentedColormap

        costs = np.full((len(downs), len(acrosses)), np.nan)
        for (row, column), each in found.items():
            costs[downs.index(row), acrosses.index(column)] = about.cost(each.mean)
        limit = max(1e-12, float(np.nanmax(np.abs(costs))))
        colours = LinearSegmentedColormap.from_list("better or worse", [BETTER, "#f2f2f2", WORSE])
        axes.imshow(costs, cmap=colours, vmin=-limit, vmax=limit, aspect="auto")
        for (row, column), each in found.items():
            star = "*" if (row, column) in sure else ""
            sign = "+" if each.mean > 0 else ""
            text = f"{sign}{about.text(each.mean)}{star}"
            axes.text(acrosses.index(column), downs.index(row), text, ha="center", va="center", color="black")
        axes.set_xticks(range(len(acrosses)), acrosses)
        axes.set_yticks(range(len(downs)), downs)
        axes.set(xlabel=axes_names[1], ylabel=axes_names[0])

    words = "; ".join(
        f"{axes_names[0]} {row}, {axes_names[1]} {column}: {each.mean:+.4g}{'*' if (row, column) in sure else ''}"
        for (row, column), each in found.items()
    )
    return Figure(
        "map",
        f"map-{slug(short)}-{slug(metric)}",
        f"{about.heading}: {short} minus {baseline}",
        f"{READING} {words}.",
        draw,
    )


def _difference(row: Row, first: Row, metric: str) -> Difference | None:
    own, other = (
        {run.seed: run.metrics[metric] for run in each.runs if metric in run.metrics} for each in (row, first)
    )
    differences = [own[seed] - other[seed] for seed in sorted(own.keys() & other.keys())]
    if not differences:
        return None
    enough = len(differences) >= ENOUGH_SEEDS
    return Difference(statistics.fmean(differences), paired_chance(differences) if enough else None)
