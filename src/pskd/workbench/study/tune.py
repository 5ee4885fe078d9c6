"""The search for the best settings, as in the paper: on a validation split over seeds, then once on all data.

A search is a study whose runs have a validation split: the data's own, or 10% of the training data. The best settings
are chosen by validation metrics alone. A second study trains with them on all of the training data; only its test
results are looked at.
"""

from __future__ import annotations

import json
import math
import random
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from pskd.errors import PskdError
from pskd.metrics.catalogue import METRICS
from pskd.workbench import tasks
from pskd.workbench.config import flat, long_key, parse_value, resolve
from pskd.workbench.recipes import read_recipe
from pskd.workbench.study import worker
from pskd.workbench.study.cells import Settings, Show, Study, StudyFile
from pskd.workbench.study.ranges import MOST_CELLS, SearchRange
from pskd.workbench.study.results import Collection, Row, collect

VALIDATION = 0.1  # of the training data
TOGETHER = "top1_error+ece"  # the lowest mean rank of both; of equal ones the lowest NLL
ROUND = 4  # settings that Optuna suggests at a time
ATTEMPTS = 100  # of Optuna to suggest settings that were not tried yet


class Choice(NamedTuple):
    """The chosen row, its settings, the reason, and the metrics that it was chosen by."""

    row: Row
    settings: Settings
    reason: str
    metrics: tuple[str, ...] = ()


def search(
    recipe: str,
    ranges: Sequence[SearchRange],
    words: Sequence[str],
    seeds: int,
    candidates: Sequence[Settings] | None = None,
) -> StudyFile:
    """The study that tries these candidates, or every combination, on a validation split."""
    x = None
    if candidates is None:
        if continuous := next((each for each in ranges if each.continuous), None):
            hint = "add --trials N to let Optuna choose N values, or --random N to draw them"
            raise PskdError(f"{continuous.key}: a continuous range has too many values to try all: {hint}")
        count = math.prod(len(each.values) for each in ranges) * seeds
        if count > MOST_CELLS:
            raise PskdError(f"these ranges make {count:,} runs: widen the steps, or add --trials N or --random N")
        axes: dict[str, Any] = {each.key: list(each.values) for each in ranges}
        if len(ranges) == 1 and _is_numeric(ranges[0]):
            x = ranges[0].key
    else:
        axes = {"trial": {_label(candidate): candidate for candidate in candidates}}
    axes["seed"] = list(range(seeds))
    show = Show(split="val", x=x, first=("ablation",))
    about = f"Search for {', '.join(each.key for each in ranges)} on a validation split"
    settings = _settings(words) | _held_out(recipe, ranges, words)
    return StudyFile(about=about, recipe=recipe, settings=settings, axes=axes, show=show)


def draw(ranges: Sequence[SearchRange], count: int) -> list[Settings]:
    """Random candidates, always the same ones."""
    generator = random.Random(0)
    return [{each.key: each.draw(generator) for each in ranges} for _ in range(count)]


def suggest(
    ranges: Sequence[SearchRange], candidates: Sequence[Settings], costs: Sequence[float], count: int
) -> list[Settings]:
    """Up to ``count`` new candidates by Optuna's TPE sampler, given the costs of those that were tried.

    Always the same ones for the same costs, so the same command continues a search that was stopped.
    """
    distributions = {each.key: _distribution(each) for each in ranges}
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=len(candidates)))
    for candidate, cost in zip(candidates, costs, strict=True):
        params = {each.key: _to_parameter(each, candidate[each.key]) for each in ranges}
        study.add_trial(optuna.trial.create_trial(params=params, distributions=distributions, value=cost))
    new: list[Settings] = []
    for _ in range(ATTEMPTS):
        if len(new) == count:
            break
        params = study.ask(distributions).params
        candidate = {each.key: _from_parameter(each, params[each.key]) for each in ranges}
        if candidate not in (*candidates, *new):
            new.append(candidate)
    return new


def score(rows: Sequence[Row], by: str) -> tuple[list[Row], list[float]]:
    """The rows that have all seeds, and their cost: of one metric, or the mean rank of accuracy and calibration."""
    most = max((len(row.runs) for row in rows), default=0)
    rows = [row for row in rows if len(row.runs) == most]
    for name in _metrics(by):
        if not all(row.values(name) for row in rows):
            known = ", ".join([*Collection("", "", rows).columns, TOGETHER])
            raise PskdError(f"--by {by}: these runs have no {name}; allowed are {known}")
    if by != TOGETHER:
        return rows, [_cost(by, row) for row in rows]
    errors, eces = ([_cost(name, row) for row in rows] for name in ("top1_error", "ece"))
    return rows, [(_rank(errors, place) + _rank(eces, place)) / 2 for place in range(len(rows))]


def choose(rows: Sequence[Row], ranges: Sequence[SearchRange], by: str) -> Choice:
    """The best row by validation metrics."""
    rows, costs = score(rows, by)
    if by == TOGETHER:
        best = min(range(len(rows)), key=lambda place: (costs[place], _cost("nll", rows[place])))
        reason = f"lowest mean rank of validation top-1 error and ECE, {costs[best]:g} of {len(rows)}; ties by NLL"
    else:
        best = costs.index(min(costs))
        reason = f"best validation {METRICS[by].heading}"
    tree = flat(rows[best].runs[0].config.model_dump(mode="json"))
    return Choice(rows[best], {each.key: tree[long_key(each.key)] for each in ranges}, reason, _metrics(by))


def tune(
    recipe: str,
    ranges: Sequence[SearchRange],
    words: Sequence[str],
    out: Path,
    *,
    seeds: int = 3,
    trials: int | None = None,
    draws: int | None = None,
    by: str = TOGETHER,
    prune: bool = False,
    workers: int | None = None,
    storage: str | None = None,
    say: Callable[[str], None] = print,
) -> Choice:
    """Search, choose, and train with the choice on all data; the two studies are `out`/search and `out`/final.

    Optuna chooses ``trials`` candidates, or ``draws`` are drawn at random, or every combination is tried.
    """
    if not ranges:
        given = f"; {words[0]} is one value, no range" if words else ""
        raise PskdError(f"what to search? for example: pskd tune digits method.alpha=0.0:1.0:0.1{given}")
    if by != TOGETHER and by not in METRICS:
        raise PskdError(f"--by {by}: not a metric; allowed are {', '.join([*METRICS, TOGETHER])}")
    if trials is not None and draws is not None:
        raise PskdError("--trials and --random exclude each other: give one of them")

    def run(candidates: Sequence[Settings] | None) -> list[Row]:
        file = search(recipe, ranges, words, seeds, candidates).model_copy(update={"prune": prune})
        if not worker.run(Study.of("search", file, out / "search"), workers, storage, say):
            raise PskdError("some runs of the search have failed, so nothing is chosen: run the command again")
        parts = collect([out / "search"])  # several, if a searched setting changes the data
        return [row for part in parts for row in part.rows]

    rows: list[Row] = []
    if trials is None:
        rows = run(None if draws is None else draw(ranges, draws))
    else:
        candidates, costs = list[Settings](), list[float]()
        while new := suggest(ranges, candidates, costs, min(ROUND, trials - len(candidates))):
            candidates += new
            rows = run(candidates)
            finished = {row.labels["trial"]: cost for row, cost in zip(*score(rows, by), strict=True)}
            worst = max(finished.values())  # for a pruned one
            costs = [finished.get(_label(candidate), worst) for candidate in candidates]
    choice = choose(rows, ranges, by)
    best = _label(choice.settings)
    say("\n".join(["", "candidates, on the validation split:", *candidate_lines(rows, choice), ""]))
    say(f"chosen: {best} ({choice.reason})")
    held_out = "data.val_fraction" in _held_out(recipe, ranges, words)
    settings = _settings(words) | ({"data.val_fraction": 0.0} if held_out else {}) | choice.settings
    about = f"Trained on everything with {best}"
    final = StudyFile(about=about, recipe=recipe, settings=settings, axes={"seed": list(range(seeds))})
    if not worker.run(Study.of("final", final, out / "final"), workers, storage, say):
        raise PskdError("a run with the chosen settings has failed: run the command again")
    say("\n".join(["", f"test result with {best}, trained on everything:", *final_lines(collect([out / "final"]))]))
    return choice


def candidate_lines(rows: Sequence[Row], choice: Choice) -> list[str]:
    """A line for each candidate: its settings, its number of seeds, and its metrics. The choice has an arrow."""
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
    """The mean and deviation of each metric over seeds, and the run folders."""
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
    """``cell`` with the part before two spaces padded to the width of its column."""
    text, gap, more = cell.partition("  ")
    return f"{text:<{width}}{gap}{more}"


def _held_out(recipe: str, ranges: Sequence[SearchRange], words: Sequence[str]) -> dict[str, float]:
    """The share of the training data to hold out; empty if the data has a validation split of its own."""
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


def _cost(metric: str, row: Row) -> float:
    return METRICS[metric].cost(statistics.fmean(row.values(metric)))


def _metrics(by: str) -> tuple[str, ...]:
    return ("top1_error", "ece", "nll") if by == TOGETHER else (by,)


def _rank(costs: Sequence[float], place: int) -> float:
    """1 for the lowest; equal ones share the mean of their ranks."""
    below = sum(cost < costs[place] for cost in costs)
    equal = sum(cost == costs[place] for cost in costs)
    return below + (equal + 1) / 2


def _label(candidate: Settings) -> str:
    return ", ".join(f"{key}={value}" for key, value in candidate.items())


def _is_numeric(searched: SearchRange) -> bool:
    return bool(searched.values) and all(isinstance(value, (int, float)) for value in searched.values)


def _choices(searched: SearchRange) -> list[Any]:
    """The values of a list, numbers in their order."""
    return sorted(searched.values) if _is_numeric(searched) else list(searched.values)


def _distribution(searched: SearchRange) -> BaseDistribution:
    """What Optuna samples from: a range of numbers, or the place of a value in its list."""
    if searched.continuous:
        return FloatDistribution(searched.low, searched.high, log=searched.logarithmic)
    last = len(searched.values) - 1
    return IntDistribution(0, last) if _is_numeric(searched) else CategoricalDistribution(range(last + 1))


def _to_parameter(searched: SearchRange, value: Any) -> Any:
    if searched.continuous:
        return min(max(value, searched.low), searched.high)  # it was rounded
    return _choices(searched).index(value)


def _from_parameter(searched: SearchRange, parameter: Any) -> Any:
    return searched.round(parameter) if searched.continuous else _choices(searched)[parameter]
