"""The search for a setting, as the paper does it: on a validation split over seeds, then once on everything.

A search is a study whose cells have a validation split: the data's own, or 10% of the training data. The best values
are chosen by validation metrics alone; a second study trains with them on all of the training data and is the only one
whose test results are looked at.
"""

from __future__ import annotations

import json
import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from pskd.errors import PskdError
from pskd.metrics.catalogue import METRICS
from pskd.workbench import tasks
from pskd.workbench.config import flat, long_key, parse_value, resolve
from pskd.workbench.recipes import read_recipe
from pskd.workbench.study import worker
from pskd.workbench.study.cells import Show, Study, StudyFile
from pskd.workbench.study.ranges import MOST_CELLS, Range
from pskd.workbench.study.results import Collection, Row, collect

VALIDATION = 0.1  # of the training data
TOGETHER = "top1_error+ece"  # lowest mean rank of both, a tie goes to the lower NLL


class Choice(NamedTuple):
    """What the search came to: the chosen row's settings, by what, and the metrics that were looked at."""

    row: Row
    settings: dict[str, Any]
    reason: str
    metrics: tuple[str, ...] = ()


def search(recipe: str, ranges: Sequence[Range], words: Sequence[str], seeds: int, trials: int | None) -> StudyFile:
    """The study that tries every combination, or ``trials`` random ones, on a validation split."""
    if trials is None:
        if continuous := next((each for each in ranges if each.continuous), None):
            raise PskdError(f"{continuous.key}: any number of a range can only be drawn: add --random TRIALS")
        count = math.prod(len(each.values) for each in ranges) * seeds
        if count > MOST_CELLS:
            raise PskdError(f"these ranges make {count:,} runs: widen the steps, or draw some with --random TRIALS")
        axes: dict[str, Any] = {each.key: list(each.values) for each in ranges}
    else:
        generator = random.Random(0)
        drawn = [{each.key: each.draw(generator) for each in ranges} for _ in range(trials)]
        axes = {"trial": {", ".join(f"{key}={value}" for key, value in one.items()): one for one in drawn}}
    numeric = len(ranges) == 1 and all(isinstance(value, (int, float)) for value in ranges[0].values)
    x = ranges[0].key if trials is None and numeric else None
    axes["seed"] = list(range(seeds))
    show = Show(split="val", x=x, first=("ablation",))
    about = f"Search for {', '.join(each.key for each in ranges)} on a validation split"
    settings = _settings(words) | _held_out(recipe, ranges, words)
    return StudyFile(about=about, recipe=recipe, settings=settings, axes=axes, show=show)


def choose(collection: Collection, ranges: Sequence[Range], by: str) -> Choice:
    """The best row by validation metrics: by the mean of one, or by accuracy and ECE together."""
    rows = [row for row in collection.rows if len(row.runs) == max(len(each.runs) for each in collection.rows)]
    names = ("top1_error", "ece", "nll") if by == TOGETHER else (by,)
    if missing := [name for name in names if not all(row.values(name) for row in rows)]:
        known = ", ".join([*collection.columns, TOGETHER])
        raise PskdError(f"--by {by}: these runs have no {missing[0]}; allowed are {known}")
    means = {name: [_cost(name, row) for row in rows] for name in names}
    if by == TOGETHER:
        ranks = [(_rank(means["top1_error"], place) + _rank(means["ece"], place)) / 2 for place in range(len(rows))]
        best = min(range(len(rows)), key=lambda place: (ranks[place], means["nll"][place]))
        reason = f"lowest mean rank of validation top-1 error and ECE, {ranks[best]:g} of {len(rows)}; ties by NLL"
    else:
        best = min(range(len(rows)), key=lambda place: means[by][place])
        reason = f"best validation {METRICS[by].heading}"
    return Choice(rows[best], _searched(rows[best], ranges), reason, names)


def tune(
    recipe: str,
    ranges: Sequence[Range],
    words: Sequence[str],
    out: Path,
    *,
    seeds: int = 3,
    trials: int | None = None,
    by: str = TOGETHER,
    prune: bool = False,
    workers: int | None = None,
    storage: str | None = None,
    say: Callable[[str], None] = print,
) -> Choice:
    """Search, choose, train with the choice on everything; the two studies are `out`/search and `out`/final."""
    if not ranges:
        given = f"; {words[0]} is one value, no range" if words else ""
        raise PskdError(f"what to search? for example: pskd tune digits method.alpha=0.0:1.0:0.1{given}")
    if by != TOGETHER and by not in METRICS:
        raise PskdError(f"--by {by}: not a metric; allowed are {', '.join([*METRICS, TOGETHER])}")
    file = search(recipe, ranges, words, seeds, trials).model_copy(update={"prune": prune})
    if not worker.run(Study.of("search", file, out / "search"), workers, storage, say):
        raise PskdError("some runs of the search have failed: nothing is chosen; mend them and run the command again")
    parts = collect([out / "search"])  # several, where a searched setting changes the data
    found = replace(parts[0], rows=[row for part in parts for row in part.rows])
    choice = choose(found, ranges, by)
    best = ", ".join(f"{key}={value}" for key, value in choice.settings.items())
    say("\n".join(["", "candidates, on the validation split:", *candidate_lines(found.rows, choice), ""]))
    say(f"chosen: {best} ({choice.reason})")
    everything = {"data.val_fraction": 0.0} if "data.val_fraction" in file.settings else {}
    settings = _settings(words) | everything | choice.settings
    final = StudyFile(
        about=f"Trained on everything with {best}", recipe=recipe, settings=settings, axes={"seed": list(range(seeds))}
    )
    if not worker.run(Study.of("final", final, out / "final"), workers, storage, say):
        raise PskdError("a run with the chosen settings has failed: mend it and run the command again")
    say("\n".join(["", f"test result with {best}, trained on everything:", *final_lines(collect([out / "final"]))]))
    return choice


def candidate_lines(rows: Sequence[Row], choice: Choice) -> list[str]:
    """A line for each candidate: its settings, seeds and the metrics that were chosen by; the choice has an arrow."""
    table = [["", "seeds", *(METRICS[name].heading for name in choice.metrics)]]
    for row in rows:
        means = [_mean_text(name, row) for name in choice.metrics]
        few = "  (fewer seeds: pruned)" if len(row.runs) < len(choice.row.runs) else ""
        mark = "  <- chosen" if row is choice.row else few
        settings = ", ".join(label if "=" in label else f"{axis}={label}" for axis, label in row.labels.items())
        table.append([settings, str(len(row.runs)), *means[:-1], means[-1] + mark])
    widths = [max(len(line[column].partition("  ")[0]) for line in table) for column in range(len(table[0]))]
    return ["  " + "  ".join(_padded(cell, n) for cell, n in zip(line, widths, strict=True)).rstrip() for line in table]


def final_lines(final: Sequence[Collection]) -> list[str]:
    """The mean of each metric over seeds with its deviation, and the run folders."""
    (row,) = (row for part in final for row in part.rows)
    lines = [f"  {METRICS[name].heading}: {_mean_text(name, row)}" for name in final[0].columns]
    return [*lines, *(f"  seed {run.seed}: {run.folder.path}" for run in row.runs)]


def _mean_text(name: str, row: Row) -> str:
    """`5.31 ± 0.22`"""
    values = row.values(name)
    if not values:
        return "-"
    spread = f" ± {METRICS[name].text(statistics.stdev(values))}" if len(values) > 1 else ""
    return METRICS[name].text(statistics.fmean(values)) + spread


def _padded(cell: str, width: int) -> str:
    """What stands before two spaces has the width of its column."""
    text, gap, more = cell.partition("  ")
    return f"{text:<{width}}{gap}{more}"


def _held_out(recipe: str, ranges: Sequence[Range], words: Sequence[str]) -> dict[str, float]:
    """What to set aside of the training data: nothing where the data has a validation split of its own."""
    first = [f"{each.key}={json.dumps(each.values[0])}" for each in ranges if each.values]
    config = resolve(read_recipe(recipe), [*words, *first])
    fraction = getattr(config.data, "val_fraction", None)
    if tasks.create(config).has_validation:
        return {"data.val_fraction": fraction} if fraction else {}
    if fraction is None or any(word.startswith("data.val_fraction=") for word in (*words, *first)):
        hint = "add one" if fraction is None else "leave data.val_fraction=0 out, and a tenth is held out"
        raise PskdError(f"data={config.data.name} has no validation split, so there is nothing to choose by: {hint}")
    return {"data.val_fraction": VALIDATION}


def _settings(words: Sequence[str]) -> dict[str, Any]:
    settings = {}
    for word in words:
        key, sign, value = word.partition("=")
        if not sign:
            raise PskdError(f"{word!r} is not a setting: write key=value, or key=low:high:step to search")
        settings[key] = parse_value(key, value)
    return settings


def _searched(row: Row, ranges: Sequence[Range]) -> dict[str, Any]:
    """The searched settings of a row, as its runs have them."""
    tree = flat(row.runs[0].config.model_dump(mode="json"))
    return {each.key: tree[long_key(each.key)] for each in ranges}


def _cost(metric: str, row: Row) -> float:
    return METRICS[metric].cost(statistics.fmean(row.values(metric)))


def _rank(costs: Sequence[float], place: int) -> float:
    """1 for the lowest; those that are equal share the mean of their ranks."""
    below = sum(cost < costs[place] for cost in costs)
    equal = sum(cost == costs[place] for cost in costs)
    return below + (equal + 1) / 2
