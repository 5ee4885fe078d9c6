"""What came out, in a sentence for each group: a method against its baseline, better or worse, and where."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence, Set
from typing import NamedTuple

from pskd.metrics.catalogue import METRICS
from pskd.workbench.report.significance import BETTER, ENOUGH_SEEDS, WORSE, pass_holm, verdict
from pskd.workbench.report.table import Table, TableCell, TableLine
from pskd.workbench.study.results import Collection, FinishedRun, Row, baseline_of, is_plain, subject_of

FEW_GROUPS = 3  # groups that get a sentence each at the top of the page
FEW_METRICS = 4  # metrics that a sentence has room for
FEW_WORDS = 5  # words that are listed
UNITS = {"classification": "images", "detection": "images", "translation": "sentence pairs"}
NOT_SIGNIFICANT = "not significant"


class Claim(NamedTuple):
    """One metric before and after; ``verdict`` is empty if there are too few seeds for one."""

    metric: str
    before: str
    after: str
    verdict: str = ""


class Finding(NamedTuple):
    """One row against the baseline of its group, or by itself if it is alone. `finding.html` makes a sentence of it."""

    group: str
    subject: str
    baseline: str
    where: str
    claims: Sequence[Claim]
    note: str = ""


class Findings(NamedTuple):
    """The sentences that a page opens with, those on the other rows, and how each row fares over many groups."""

    opening: Sequence[Finding]
    others: Sequence[Finding]
    overall: Sequence[str]


def make_findings(collection: Collection, table: Table) -> Findings:
    """What the comparison shows; ``table`` is its table."""
    opening, others = list[Finding](), list[Finding]()
    for frame, rows in collection.frames.items():
        lines = dict(zip(rows, table.frames[frame], strict=True))
        if len(rows) == 1:
            opening.append(_describe(frame, rows[0], lines[rows[0]], table))
            continue
        findings = {row: _compare(frame, row, rows, lines[row], table) for row in rows if row is not baseline_of(rows)}
        opening.append(findings.pop(subject_of(rows)))
        others += findings.values()
    overall = list(_count_over_groups(collection, table)) if len(opening) > FEW_GROUPS else []
    return Findings(opening, others, overall)


def list_facts(collection: Collection) -> dict[str, str]:
    """Data set, sizes, network, epochs and seeds of all runs of a collection."""
    runs, unit = collection.runs, UNITS.get(collection.runs[0].config.task, "samples")
    trained = _training_sizes(runs)
    tested = _join(f"{len(run.scores.correct):,}" for run in runs if run.scores is not None)
    split = "validation" if collection.show.split == "val" else "test"
    sizes = [f"{trained} training {unit}"] * bool(trained) + [f"{tested} {split} {unit}"] * bool(tested)
    if collection.runs[0].config.task != "translation":
        classes = sorted({run.result.get("num_classes", 0) for run in runs})
        sizes.append(f"{_join(f'{count:,}' for count in classes)} classes")
    return {
        "data": _join(run.data_name for run in runs),
        "sizes": ", ".join(sizes),
        "network": _join(f"{run.config.model.name}, {run.result['parameters']:,} parameters" for run in runs),
        "epochs": _join(str(epoch) for epoch in sorted({run.result["epoch"] for run in runs})),
        "seeds": _join(str(seed) for seed in sorted({run.seed for run in runs})),
    }


def _describe(frame: str, row: Row, line: TableLine, table: Table) -> Finding:
    """A row that is compared with nothing."""
    claims = [Claim(_short_name(name), "", table.shown(name, cell)) for name, cell in _main_numbers(line)]
    return Finding(frame, _name_subject(row, [row]), "", _describe_data(row, {run.seed for run in row.runs}), claims)


def _compare(frame: str, row: Row, rows: Sequence[Row], line: TableLine, table: Table) -> Finding:
    baseline = baseline_of(rows)
    seeds = {run.seed for run in row.runs} & {run.seed for run in baseline.runs}
    note = f"{f'{len(seeds)} seeds' if len(seeds) != 1 else 'One seed'}: too few to call a difference significant."
    return Finding(
        frame,
        _name_subject(row, rows),
        _name_row(baseline, rows),
        _describe_data(row, seeds),
        _make_claims(table, line, baseline, row, seeds),
        note if len(seeds) < ENOUGH_SEEDS else "",
    )


def _describe_data(row: Row, seeds: Set[int]) -> str:
    """`CIFAR-10, 300 images, 3 seeds`"""
    sizes, unit = _training_sizes(row.runs), UNITS.get(row.runs[0].config.task, "samples")
    count = f"{len(seeds)} seed{'' if len(seeds) == 1 else 's'}"
    return ", ".join(filter(None, (row.runs[0].data_name, sizes and f"{sizes} {unit}", count)))


def _make_claims(table: Table, line: TableLine, before: Row, after: Row, seeds: Set[int]) -> list[Claim]:
    """The main metrics, first those that became better, then those that became worse.

    Means are over the seeds that both rows have, or over all seeds if they share none.
    """
    claims = []
    for name, cell in _main_numbers(line):
        numbers = [
            [run.metrics[name] for run in row.runs if (run.seed in seeds or not seeds) and name in run.metrics]
            for row in (before, after)
        ]
        if all(numbers):
            word = cell.verdict or (NOT_SIGNIFICANT if cell.p is not None else "")
            was, became = (table.text(name, statistics.fmean(values)) for values in numbers)
            claims.append(Claim(_short_name(name), was, became, word))
    order = [BETTER, WORSE]
    return sorted(claims, key=lambda claim: order.index(claim.verdict) if claim.verdict in order else len(order))


def _main_numbers(line: TableLine) -> list[tuple[str, TableCell]]:
    """The metrics of a line that a sentence has room for."""
    numbers = [(name, cell) for name, cell in line.cells.items() if cell is not None]
    main = [(name, cell) for name, cell in numbers if METRICS[name].line is not None and METRICS[name].curve]
    return (main or numbers)[:FEW_METRICS]


def _count_over_groups(collection: Collection, table: Table) -> Iterator[str]:
    """For each row that stands in several groups: in how many it is better than the baseline, by each metric."""
    compared: dict[str, list[tuple[TableLine, TableLine]]] = {}
    names: dict[str, str] = {}
    for frame, rows in collection.frames.items():
        lines, baseline = dict(zip(rows, table.frames[frame], strict=True)), baseline_of(rows)
        for row in rows:
            if row is not baseline:
                names.setdefault(row.short, f"{_name_subject(row, rows)} against {_name_row(baseline, rows)}")
                compared.setdefault(row.short, []).append((lines[baseline], lines[row]))
    for short, pairs in compared.items():
        words = "; ".join(f"{_short_name(name)} {_count_verdicts(name, pairs)}" for name in table.metrics)
        none = "" if "significantly" in words else " No difference is significant."
        yield f"{names[short]} in {len(pairs)} groups: {words}.{none}"


def _count_verdicts(name: str, pairs: Sequence[tuple[TableLine, TableLine]]) -> str:
    """`better in 3 (2 significantly), worse in 1`"""
    words: dict[int, str] = {}
    chances: dict[int, float] = {}
    for number, (before, after) in enumerate((one.cells[name], other.cells[name]) for one, other in pairs):
        if before is not None and after is not None and before.mean != after.mean:
            words[number] = verdict(METRICS[name], after.mean - before.mean)
            chances |= {number: after.p} if after.p is not None else {}
    significant = pass_holm(chances)
    parts = []
    for word in dict.fromkeys((BETTER, WORSE, *words.values())):
        groups = {number for number, own in words.items() if own == word}
        count = len(significant & groups)
        parts += [f"{word} in {len(groups)}{f' ({count} significantly)' if count else ''}"] * bool(groups)
    return ", ".join(parts) or "the same"


def _name_subject(row: Row, rows: Sequence[Row]) -> str:
    """The row's name, with its method if all rows have the same one: then the name does not have it."""
    same_method = len({each.title for each in rows}) == 1 and not is_plain(row.runs[0].config)
    return f"{row.title} with {row.short}" if same_method and row.title not in row.short else _name_row(row, rows)


def _name_row(row: Row, rows: Sequence[Row]) -> str:
    """A row's name in a sentence: `PS-KD`, `plain cross-entropy (CE)`, `alpha 0.8`, `trunk PS-KD`."""
    axis, label = list(row.labels.items())[-1]
    if is_plain(row.runs[0].config) and not all(is_plain(each.runs[0].config) for each in rows):
        return row.short if row.title in row.short else f"{row.title} ({row.short})"
    other_axis = axis not in ("method", "run") and len({each.title for each in rows}) == 1
    return f"{axis} {label}" if other_axis and row.short == label else row.short


def _short_name(metric: str) -> str:
    """`top-1 error`, as in the line of an epoch."""
    line = METRICS[metric].line
    return METRICS[metric].title if line is None else line.partition(" {")[0]


def _training_sizes(runs: Sequence[FinishedRun]) -> str:
    return _join(f"{size:,}" for size in sorted({run.training_samples or 0 for run in runs}) if size)


def _join(words: Iterable[str]) -> str:
    """All different words if they are few, else the first and the last one."""
    different = list(dict.fromkeys(words))
    return " · ".join(different) if len(different) <= FEW_WORDS else f"{different[0]} to {different[-1]}"
