"""The tables of a report: comparison, ensembles, after temperature scaling, coverage at an error rate, classes."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pskd.calibration import fit_temperature
from pskd.errors import PskdError
from pskd.metrics import functional
from pskd.metrics.catalogue import METRICS, Metric
from pskd.metrics.details import coverage_at_risk
from pskd.workbench.report.ensembles import DifferentData, average_predictions, score_predictions
from pskd.workbench.report.significance import (
    ENOUGH_SEEDS,
    LEVEL,
    interval,
    paired_chance,
    paired_differences,
    pass_holm,
    verdict,
)
from pskd.workbench.report.table import Table, TableCell, TableLine
from pskd.workbench.runs import predictions
from pskd.workbench.study.cells import Paper
from pskd.workbench.study.results import Collection, FinishedRun, Row, baseline_of

QUOTED = "literature"  # the group of rows that the paper quotes
MANY = 8  # changed settings that are listed
RISKS = {f"coverage_at_{risk}": risk for risk in (1, 5, 10)}  # % of the answers
SMALLEST = torch.finfo(torch.float32).tiny  # instead of probabilities that were stored as 0
COVERAGE = (
    "How many of the samples, the most confident first, can be answered if at most 1, 5 or 10% of the answers may be"
    " wrong."
)
NO_PREDICTIONS = "{} of {} runs have no predictions.npz: figures and tables of single predictions are left out."
NO_VALIDATION = (
    "No table after temperature scaling: not every run has a validation split to fit a temperature on"
    " (data.val_fraction=0.1)."
)

Numbers = Mapping[int, Mapping[str, Any]]  # the metrics of a row's runs by seed


def make_tables(collection: Collection) -> list[Table]:
    """All tables that the runs have data for, the one that the study is about first."""
    table, more = compare(collection), list[Table]()
    if all(run.config.task == "classification" for run in collection.runs):
        note = ""
        if missing := sum(run.scores is None for run in collection.runs):
            note = NO_PREDICTIONS.format(missing, len(collection.runs))
        elif collection.show.split == "test":
            ensembles, calibrated = compare_ensembles(collection), after_temperature(collection)
            more += filter(None, (ensembles, calibrated))
            note = NO_VALIDATION if calibrated is None else ""
        table = replace(table, notes=[*table.notes, *filter(None, [note])])
    tables = [*more, table] if collection.show.ensemble else [table, *more]
    tables[1:1] = filter(None, [coverage(collection)])
    return [*tables, *filter(None, [by_class(collection)])]


def compare(collection: Collection) -> Table:
    """The metrics of each row: mean and deviation over seeds, the best of each group, the paper's numbers."""
    numbers = {row: {run.seed: run.metrics for run in row.runs} for row in collection.rows}
    paper = None if collection.show.ensemble else collection.paper
    frames = _make_frames(collection, _columns(collection), numbers, paper)
    title = f"{'Validation' if collection.show.split == 'val' else 'Test'} set, last epoch"
    table = Table("comparison", title, "Comparison", _columns(collection), frames, [])
    compared = any(len(lines) > 1 for lines in frames.values())
    spread = any(cell.deviation is not None for cell in table.cells)
    legend = ["mean ± standard deviation over seeds"] * spread + ["the best of a group is bold"] * compared
    notes = [f"{'; '.join(legend).capitalize()}."] * bool(legend)
    notes += _explain_significance(table) if compared else []
    return _add_context(replace(table, notes=notes), collection, paper)


def compare_ensembles(collection: Collection) -> Table | None:
    """The metrics of the mean of each row's predictions; None without a row of several seeds."""
    numbers = {row: _score_ensemble(row) for row in collection.rows if len(row.runs) > 1}
    if not numbers:
        return None
    paper = collection.paper if collection.show.ensemble else None
    frames = _make_frames(collection, _columns(collection), numbers, paper)
    notes = ["- no ensemble: the row's runs were tested on different data."] * (not all(numbers.values()))
    notes += ["The best of a group is bold."] * any(len(lines) > 1 for lines in frames.values())
    about = "The mean of the probabilities of a row's seeds, as if they were one model."
    title = "Ensembles of each row's seeds"
    table = Table("ensembles", title, "Ensembles", _columns(collection), frames, notes, about)
    return _add_context(table, collection, paper)


def by_class(collection: Collection) -> Table | None:
    """Each class's average precision, of detectors."""
    numbers = {row: {run.seed: run.metrics.get("ap_per_class", {}) for run in row.runs} for row in collection.rows}
    classes = dict.fromkeys(name for runs in numbers.values() for run in runs.values() for name in run)
    if not classes:
        return None
    metrics = {name: Metric(name, "", "{:.4f}", True) for name in classes}
    title, paper = "Average precision by class", None if collection.paper is None else collection.paper.by_class
    notes = ["Average precision at IoU 0.5; the best of a group is bold.", *_name_paper(paper)]
    return Table("by-class", title, title, metrics, _make_frames(collection, metrics, numbers, paper), notes)


def coverage(collection: Collection) -> Table | None:
    """The share of the samples, the most confident first, that can be answered at each error rate."""
    numbers: dict[Row, Numbers] = {}
    for row in collection.rows:
        curves = {
            run.seed: functional.risk_coverage_curve_from(*run.scores) for run in row.runs if run.scores is not None
        }
        if len(curves) < len(row.runs):
            return None
        numbers[row] = {
            seed: {name: 100 * coverage_at_risk(curve, risk / 100) for name, risk in RISKS.items()}
            for seed, curve in curves.items()
        }
    metrics = {name: Metric(f"at {risk}% error", "%", "{:.1f}", True) for name, risk in RISKS.items()}
    frames, title = _make_frames(collection, metrics, numbers), "Coverage at an error rate"
    return Table("coverage", title, "Calibration and confidence", metrics, frames, [COVERAGE])


def after_temperature(collection: Collection) -> Table | None:
    """The comparison of the test set after temperature scaling; None if a run has no validation split.

    Only the validation predictions are used to fit a temperature.
    """
    numbers: dict[Row, Numbers] = {}
    temperatures = []
    for row in collection.rows:
        runs = {run.seed: calibrated for run in row.runs if (calibrated := _calibrate(run)) is not None}
        if len(runs) < len(row.runs):
            return None
        numbers[row] = {seed: metrics for seed, (_, metrics) in runs.items()}
        temperatures.append(f"{row.name} {statistics.fmean(temperature for temperature, _ in runs.values()):.3f}")
    every = [metrics for runs in numbers.values() for metrics in runs.values()]
    columns = {name: metric for name, metric in _columns(collection).items() if all(name in each for each in every)}
    notes = [
        "Each run's probabilities scaled by the temperature that its validation predictions ask for.",
        f"Temperatures (mean over seeds; above 1 the model was too confident): {', '.join(temperatures)}.",
    ]
    title, frames = "Test set, last epoch, after temperature scaling", _make_frames(collection, columns, numbers)
    return Table("calibrated", title, "After temperature scaling", columns, frames, notes)


def _columns(collection: Collection) -> dict[str, Metric]:
    return {name: METRICS[name] for name in collection.columns}


def _score_ensemble(row: Row) -> Numbers:
    try:
        mean = average_predictions([run.folder.path for run in row.runs])
    except DifferentData:
        return {}
    return {0: score_predictions(mean, row.runs[0].config.eval.ece_bins)}


def _calibrate(run: FinishedRun) -> tuple[float, dict[str, float]] | None:
    """The temperature that a run's validation predictions ask for, and its test metrics with it."""
    if "val" not in run.result:
        return None
    try:
        validation, test = (predictions.read(run.folder.path, split) for split in ("val", "test"))
    except PskdError:
        return None
    temperature = fit_temperature(_log(validation.probs), validation.labels)
    scores = functional.score_samples(_log(test.probs) / temperature, test.labels, from_logits=True)
    return temperature, functional.summarize(scores, run.config.eval.ece_bins)


def _log(probs: Tensor) -> Tensor:
    return probs.clamp_min(SMALLEST).log()


def _make_frames(
    collection: Collection, metrics: Mapping[str, Metric], numbers: Mapping[Row, Numbers], paper: Paper | None = None
) -> dict[str, list[TableLine]]:
    """The lines of each group, of the rows that have numbers."""
    frames: dict[str, list[TableLine]] = {}
    for frame, members in collection.frames.items():
        rows = [row for row in members if row in numbers]
        frames[frame] = []
        columns = {name: _make_column(name, metric, rows, numbers) for name, metric in metrics.items()}
        for row in rows:
            published = _name_columns(paper, paper.rows.get(row.key, ())) if paper else {}
            cells: dict[str, TableCell | None] = dict.fromkeys(metrics)
            for name, column in columns.items():
                if row in column:
                    cells[name] = column[row]._replace(paper=published.get(name))
            is_baseline = len(rows) > 1 and row is baseline_of(rows)
            frames[frame].append(TableLine(row.short, len(row.runs), cells, bool(row.changed), is_baseline))
    return frames


def _name_columns(paper: Paper, numbers: Sequence[float | None]) -> dict[str, float | None]:
    """A row of the paper's table by metric; nothing for a row that it does not have."""
    return dict(zip(paper.columns, numbers, strict=False))


def _make_column(
    name: str, metric: Metric, rows: Sequence[Row], numbers: Mapping[Row, Numbers]
) -> dict[Row, TableCell]:
    """One metric of all rows of a group: paired t-tests over the seeds that a row shares with the baseline.

    A verdict needs three such seeds and must pass Holm's correction for the number of rows.
    """
    values = {row: {seed: run[name] for seed, run in numbers[row].items() if name in run} for row in rows}
    means = {row: statistics.fmean(own.values()) for row, own in values.items() if own}
    best = metric.best(means.values()) if len(set(means.values())) > 1 else None
    baseline = baseline_of(rows) if rows else None
    differences = {
        row: paired_differences(own, values[baseline])
        for row, own in values.items()
        if baseline is not None and row is not baseline
    }
    chances = {row: paired_chance(own) for row, own in differences.items() if len(own) >= ENOUGH_SEEDS}
    significant = pass_holm(chances)
    cells = {}
    for row, mean in means.items():
        own = list(values[row].values())
        spread = statistics.stdev(own) if len(own) > 1 else None
        compared = differences.get(row, own)
        word = verdict(metric, statistics.fmean(compared)) if row in significant else ""
        low, high = interval(compared) or (None, None)
        cells[row] = TableCell(mean, spread, mean == best, word, None, low, high, chances.get(row))
    return cells


def _add_context(table: Table, collection: Collection, paper: Paper | None) -> Table:
    """The table with notes on how it was measured and, if there is one, with the paper's table."""
    notes, frames = list(table.notes), dict(table.frames)
    if "ece" in table.metrics and collection.runs:
        bins = sorted({run.config.eval.ece_bins for run in collection.runs})
        notes.append(f"ECE with {', '.join(map(str, bins))} bins.")
    pairs = (pair for run in collection.runs for pair in run.result.get("signatures", {}).items())
    signatures = sorted({(name, text) for name, text in pairs if name in table.metrics})
    notes += [f"{METRICS[name].heading}: {text}." for name, text in signatures]
    notes += _name_paper(paper)
    if paper is not None:
        changed = sorted({line for row in collection.rows for line in row.changed})
        if changed:
            more = f", and {len(changed) - MANY} more" if len(changed) > MANY else ""
            listed = "; ".join(changed[:MANY])
            notes.append(f"* other settings than the paper's (setting: paper, here): {listed}{more}.")
        if paper.literature:
            quoted = []
            for label, row in paper.literature.items():
                published = _name_columns(paper, row)
                numbers = {name: published.get(name) for name in table.metrics}
                cells = {name: None if value is None else TableCell(value) for name, value in numbers.items()}
                quoted.append(TableLine(label, 0, cells))
            frames = {QUOTED: quoted, **frames}
            notes.append(f"{QUOTED.capitalize()}: what {paper.table} quotes from others, no run of ours.")
    return replace(table, notes=notes, frames=frames)


def _name_paper(paper: Paper | None) -> list[str]:
    if paper is None:
        return []
    return [f"In brackets or below: the paper's {paper.table}{f' ({paper.note})' if paper.note else ''}."]


def _explain_significance(table: Table) -> list[str]:
    names = {line.label for line in table.lines if line.baseline}
    baseline = names.pop() if len(names) == 1 else "the group's baseline"
    test = f"paired t-test over seeds, {LEVEL:.0%}, Holm's correction"
    few = [line.seeds < ENOUGH_SEEDS for line in table.lines]
    if any(cell.verdict for cell in table.cells):
        notes = [f"Marked as better or worse than {baseline} ({test}); all other differences are not significant."]
    elif all(few):
        return [f"Fewer than {ENOUGH_SEEDS} seeds: no difference here is called significant."]
    else:
        notes = [f"No difference from {baseline} is significant at these seeds ({test})."]
    return notes + [f"Rows with fewer than {ENOUGH_SEEDS} seeds are never called different."] * any(few)
