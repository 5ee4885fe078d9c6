"""What came out, in a sentence for each group: a method against its baseline, better or worse, and where."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence, Set
from typing import NamedTuple

from pskd.metrics.catalogue import METRICS
from pskd.workbench.report.significance import BETTER, ENOUGH_SEEDS, WORSE, pass_holm, verdict
from pskd.workbench.report.summary import Entry, Line, Table
from pskd.workbench.study.results import Collection, Row, Run, baseline_of, is_plain, subject_of

FEW_GROUPS = 3  # that are told one by one
UNITS = {"classification": "images", "detection": "images", "translation": "sentence pairs"}
NOT_SIGNIFICANT = "not significant"


class Claim(NamedTuple):
    """One metric: what it was and what it became; ``verdict`` is empty where there are too few seeds for any."""

    metric: str
    before: str
    after: str
    verdict: str


class Finding(NamedTuple):
    """One row against the baseline of its group, or by itself if that has no other."""

    group: str
    subject: str
    baseline: str
    where: str
    claims: Sequence[Claim]
    note: str

    def __str__(self) -> str:
        against = f" against {self.baseline}" if self.baseline else ""
        claims = "; ".join(
            f"{claim.metric} {claim.before} → {claim.after}{', ' if claim.verdict else ''}{claim.verdict}"
            if claim.before
            else f"{claim.metric} {claim.after}"
            for claim in self.claims
        )
        group = f"{self.group}: " if self.group else ""
        note = f" {self.note}" if self.note else ""
        return f"{group}{self.subject}{against}, {self.where}: {claims}.{note}"


class Findings(NamedTuple):
    """The sentences that a page opens with, those on the other rows, and how a row fares over many groups."""

    opening: Sequence[Finding]
    others: Sequence[Finding]
    overall: Sequence[str]


def findings(collection: Collection, table: Table) -> Findings:
    opening, others = list[Finding](), list[Finding]()
    for frame, rows in collection.frames.items():
        told = {
            id(row): _against(frame, row, rows, table) for row in rows if len(rows) == 1 or not _is_first(row, rows)
        }
        main = rows[0] if len(rows) == 1 else subject_of(rows)
        opening.append(told.pop(id(main)))
        others += told.values()
    overall = list(_overall(collection, table)) if len(opening) > FEW_GROUPS else []
    return Findings(opening, others, overall)


def facts(collection: Collection) -> dict[str, str]:
    """Data set, sizes, network, seeds: what all runs of a collection are, or the few things that they are."""
    runs, unit = collection.runs, UNITS.get(collection.runs[0].config.task, "samples")
    tested = [len(run.scores.correct) for run in runs if run.scores is not None]
    what = "validation" if collection.show.split == "val" else "test"
    sizes = [f"{_few(map(_count, training))} training {unit}"] if (training := _sizes(runs)) else []
    sizes += [f"{_few(map(_count, tested))} {what} {unit}"] if tested else []
    classes = sorted({run.result.get("num_classes", 0) for run in runs})
    sizes += [f"{_few(map(_count, classes))} classes"] if collection.runs[0].config.task != "translation" else []
    return {
        "data": _few(run.data_name for run in runs),
        "sizes": ", ".join(sizes),
        "network": _few(f"{run.config.model.name}, {_count(run.result['parameters'])} parameters" for run in runs),
        "epochs": _few(str(epoch) for epoch in sorted({run.result["epoch"] for run in runs})),
        "seeds": _few(str(seed) for seed in sorted({run.seed for run in runs})),
    }


def _against(frame: str, row: Row, rows: Sequence[Row], table: Table) -> Finding:
    lines = table.frames[frame]
    alone, baseline = len(rows) == 1, baseline_of(rows)
    seeds = {run.seed for run in row.runs} & {run.seed for run in baseline.runs}
    claims = [] if alone else _claims(table, _line(lines, rows, row), baseline, row, seeds)
    if alone:
        own = _line(lines, rows, row)
        claims = [Claim(_spoken(name), "", table.shown(name, entry), "") for name, entry in _told(table, own)]
    few = not alone and len(seeds) < ENOUGH_SEEDS
    count = f"{len(seeds)} seed{'' if len(seeds) == 1 else 's'}"
    size = _few(map(_count, _sizes(row.runs)))
    size = f"{size} {UNITS.get(row.runs[0].config.task, 'samples')}" if size else ""
    note = f"{count.capitalize() if len(seeds) > 1 else 'One seed'}: too few to call a difference significant."
    return Finding(
        frame,
        _subject(row, rows),
        "" if alone else _named(baseline, rows),
        ", ".join(filter(None, (row.runs[0].data_name, size, count))),
        claims,
        note if few else "",
    )


def _claims(table: Table, line: Line, before: Row, after: Row, seeds: Set[int]) -> list[Claim]:
    """Of the metrics that people look at, those that became better first, then worse ones.

    ``seeds`` are those that both rows have, over which the means are taken, or over all where they share none.
    """
    found = []
    for name, entry in _told(table, line):
        numbers = [
            [run.metrics[name] for run in row.runs if (run.seed in seeds or not seeds) and name in run.metrics]
            for row in (before, after)
        ]
        if all(numbers):
            word = entry.verdict or (NOT_SIGNIFICANT if entry.p is not None else "")
            was, became = (table.text(name, statistics.fmean(values)) for values in numbers)
            found.append(Claim(_spoken(name), was, became, word))
    order = [BETTER, WORSE]
    return sorted(found, key=lambda claim: order.index(claim.verdict) if claim.verdict in order else len(order))


def _told(table: Table, line: Line) -> list[tuple[str, Entry]]:
    """The metrics of a line that a sentence has room for."""
    numbers = [(name, entry) for name, entry in zip(table.metrics, line.entries, strict=True) if entry is not None]
    return [pair for pair in numbers if METRICS[pair[0]].line is not None and METRICS[pair[0]].curve][:4] or numbers[:4]


def _overall(collection: Collection, table: Table) -> Iterator[str]:
    """For each row that stands in several groups: in how many it is better than the baseline, by each metric."""
    compared: dict[str, list[tuple[Row, Sequence[Row], Line, Line]]] = {}
    for frame, rows in collection.frames.items():
        lines = table.frames[frame]
        for row in rows:
            if len(rows) > 1 and not _is_first(row, rows):
                pair = _line(lines, rows, baseline_of(rows)), _line(lines, rows, row)
                compared.setdefault(row.short, []).append((row, rows, *pair))
    for found in compared.values():
        row, among, *_ = found[0]
        words = "; ".join(
            _counted(name, table, [(before, after) for *_, before, after in found]) for name in table.metrics
        )
        against = f"{_subject(row, among)} against {_named(baseline_of(among), among)}"
        none = "" if "significantly" in words else " No difference is significant."
        yield f"{against} in {len(found)} groups: {words}.{none}"


def _counted(name: str, table: Table, pairs: Sequence[tuple[Line, Line]]) -> str:
    place, metric = list(table.metrics).index(name), METRICS[name]
    chances: dict[int, float] = {}
    words: dict[int, str] = {}
    for number, lines in enumerate(pairs):
        before, after = (line.entries[place] for line in lines)
        if before is not None and after is not None and before.mean != after.mean:
            words[number] = verdict(metric, after.mean - before.mean)
            chances |= {number: after.p} if after.p is not None else {}
    sure = pass_holm(chances)
    parts = []
    for word in dict.fromkeys((BETTER, WORSE, *words.values())):
        own = [number for number, said in words.items() if said == word]
        if own:
            count = len(sure.intersection(own))
            parts.append(f"{word} in {len(own)}{f' ({count} significantly)' if count else ''}")
    return f"{_spoken(name)} {', '.join(parts) or 'the same'}"


def _is_first(row: Row, rows: Sequence[Row]) -> bool:
    return row is baseline_of(rows)


def _line(lines: Sequence[Line], rows: Sequence[Row], row: Row) -> Line:
    return next(line for line, each in zip(lines, rows, strict=True) if each is row)


def _subject(row: Row, rows: Sequence[Row]) -> str:
    """With its method, where that does not tell rows apart and so is not in their names."""
    alike = len({each.title for each in rows}) == 1 and not is_plain(row.runs[0].config)
    return f"{row.title} with {row.short}" if alike and row.title not in row.short else _named(row, rows)


def _named(row: Row, rows: Sequence[Row]) -> str:
    """A row's name in a sentence: `PS-KD`, `plain cross-entropy (CE)`, `alpha 0.8`, `trunk PS-KD`."""
    axis, label = list(row.labels.items())[-1]
    if is_plain(row.runs[0].config) and not all(is_plain(each.runs[0].config) for each in rows):
        return row.short if row.title in row.short else f"{row.title} ({row.short})"
    other = axis not in ("method", "run") and len({each.title for each in rows}) == 1
    return f"{axis} {label}" if other and row.short == label else row.short


def _spoken(metric: str) -> str:
    """`top-1 error`, as the line of an epoch says it."""
    line = METRICS[metric].line
    return METRICS[metric].title if line is None else line.partition(" {")[0]


def _sizes(runs: Sequence[Run]) -> list[int]:
    return sorted({size for run in runs if (size := run.training_samples) is not None})


def _count(number: int) -> str:
    return f"{number:,}"


def _few(words: Iterable[str]) -> str:
    """All different ones, or how many there are."""
    found = list(dict.fromkeys(words))
    return " · ".join(found) if len(found) <= 5 else f"{found[0]} to {found[-1]}"
