"""The comparison in the paper's form: means and deviations over seeds, the best of each frame, the paper's numbers."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from pskd.analysis.ensembles import Different, joined, score
from pskd.metrics.catalogue import METRICS, Metric
from pskd.study.cells import Paper
from pskd.study.results import Collection, Row

Key = TypeVar("Key", bound=Hashable)
QUOTED = "literature"  # the group of rows that the paper quotes
ENOUGH_SEEDS, LEVEL = 3, 0.05  # before a difference is called significant


class Entry(NamedTuple):
    """One number of the table, in the metric's own units."""

    mean: float
    deviation: float | None = None  # sample standard deviation over seeds; None for fewer than two
    best: bool = False  # of its frame
    significant: bool = False  # differs from the frame's first row
    paper: float | None = None


class Line(NamedTuple):
    label: str
    seeds: int
    entries: Sequence[Entry | None]  # one for each metric
    changed: bool  # whether it has other settings than the paper


class Style(NamedTuple):
    """How a table is written in some language: functions of a text, and marks."""

    escaped: Callable[[str], str]
    number: Callable[[str], str]
    bold: str
    dagger: str
    star: str


@dataclass(frozen=True)
class Table:
    """Lines in frames, one column for each metric."""

    name: str
    title: str
    metrics: Sequence[str]
    frames: Mapping[str, Sequence[Line]]
    notes: Sequence[str]
    kinds: Mapping[str, Metric] = field(default_factory=lambda: METRICS)  # by name, what each metric is

    @property
    def header(self) -> list[str]:
        return [self.kinds[name].heading for name in self.metrics]

    def text(self, metric: str, value: float) -> str:
        return self.kinds[metric].text(value)

    def shown(self, metric: str, entry: Entry | None) -> str:
        """`20.82 ± 0.11`"""
        if entry is None:
            return "-"
        spread = "" if entry.deviation is None else f" ± {self.text(metric, entry.deviation)}"
        return self.text(metric, entry.mean) + spread

    def csv(self) -> str:
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        parts = ("mean", "deviation", "best", "significant", "paper")
        writer.writerow(["frame", "row", "seeds", *(f"{name} {part}" for name in self.metrics for part in parts)])
        for frame, lines in self.frames.items():
            for line in lines:
                cells = [value for entry in line.entries for value in (entry or [None] * len(parts))]
                writer.writerow([frame, line.label, line.seeds, *("" if cell is None else cell for cell in cells)])
        return out.getvalue()

    def markdown(self) -> str:
        lines = [["", "seeds", *self.header], ["---"] * (len(self.metrics) + 2), *self._lines(MARKDOWN)]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n\n" + "\n\n".join(self.notes) + "\n"

    def latex(self) -> str:
        header = " & ".join(["", "seeds", *map(_latex_escaped, self.header)])
        rows = "\n".join("    " + " & ".join(line) + r" \\" for line in self._lines(LATEX))
        notes = "".join(f"% {note}\n" for note in self.notes)
        return (
            f"% {self.title}; needs \\usepackage{{booktabs}}\n{notes}"
            f"\\begin{{tabular}}{{lr{'c' * len(self.metrics)}}}\n    \\toprule\n    {header} \\\\\n    \\midrule\n"
            f"{rows}\n    \\bottomrule\n\\end{{tabular}}\n"
        )

    def _lines(self, style: Style) -> list[list[str]]:
        lines = []
        for frame, members in self.frames.items():
            for line in members:
                cells = [style.escaped(" · ".join(filter(None, (frame, line.label)))), str(line.seeds)]
                for metric, entry in zip(self.metrics, line.entries, strict=True):
                    text = style.number(self.shown(metric, entry))
                    if entry is not None:
                        text = (style.bold if entry.best else "{}").format(text)
                        text += style.dagger if entry.significant else ""
                        if entry.paper is not None:
                            star = style.star if line.changed else ""
                            text += f" (paper {self.text(metric, entry.paper)}{star})"
                    cells.append(text)
                lines.append(cells)
        return lines


def compare(collection: Collection, *, ensembles: bool = False) -> Table:
    """The table of a collection's rows, or of the ensembles of each row's seeds."""
    metrics = collection.columns
    paper = collection.paper if ensembles == collection.show.ensemble else None
    frames = {}
    for frame, rows in collection.frames.items():
        if ensembles:
            rows = [row for row in rows if len(row.runs) > 1]
            numbers = [_of_ensemble(row, metrics) for row in rows]
        else:
            numbers = [{metric: row.values(metric) for metric in metrics} for row in rows]
        frames[frame] = lines_of(rows, numbers, {metric: METRICS[metric] for metric in metrics}, paper)
    notes = _notes(collection, frames, ensembles)
    if paper is not None and paper.literature:
        frames = {QUOTED: _quoted(paper, metrics)} | frames
        notes.append(f"{QUOTED.capitalize()}: what {paper.table} quotes from others, no run of ours.")
    kind = "ensembles of each row's seeds" if ensembles else f"{collection.show.split} set, last epoch"
    name = "ensembles" if ensembles else "comparison"
    return Table(name, f"{collection.title}: {kind}", metrics, frames, notes)


def by_class(collection: Collection) -> Table | None:
    """Each class's average precision, of detectors."""

    def precision(row: Row, name: str) -> list[float]:
        return [found[name] for run in row.runs if name in (found := _classes(run.metrics))]

    classes = {name: Metric(name, "", "{:.4f}", True) for run in collection.runs for name in _classes(run.metrics)}
    if not classes:
        return None
    paper = None if collection.paper is None else collection.paper.by_class
    frames = {
        frame: lines_of(rows, [{name: precision(row, name) for name in classes} for row in rows], classes, paper)
        for frame, rows in collection.frames.items()
    }
    notes = ["Average precision at IoU 0.5; the best of a group is bold."]
    notes += [] if paper is None else [f"In brackets or below: the paper's {paper.table}."]
    return Table("by-class", f"{collection.title}: classes", tuple(classes), frames, notes, classes)


def _classes(metrics: Mapping[str, Any]) -> Mapping[str, float]:
    found: Mapping[str, float] = metrics.get("ap_per_class", {})
    return found


def lines_of(
    rows: Sequence[Row],
    numbers: Sequence[Mapping[str, Sequence[float]]],
    metrics: Mapping[str, Metric],
    paper: Paper | None,
) -> list[Line]:
    """The lines of a frame; ``numbers`` are each row's by metric."""
    columns = []
    for name, metric in metrics.items():
        published = [_published(paper.rows.get(row.name), paper.columns, name) if paper else None for row in rows]
        columns.append(_column(metric, [of_row[name] for of_row in numbers], published, rows))
    return [
        Line(row.short, len(row.runs), [column[i] for column in columns], bool(row.changed))
        for i, row in enumerate(rows)
    ]


def _quoted(paper: Paper, metrics: Sequence[str]) -> list[Line]:
    lines = []
    for label, row in paper.literature.items():
        values = [_published(row, paper.columns, metric) for metric in metrics]
        lines.append(Line(label, 0, [None if value is None else Entry(value) for value in values], changed=False))
    return lines


def _column(
    metric: Metric, values: Sequence[Sequence[float]], published: Sequence[float | None], rows: Sequence[Row]
) -> list[Entry | None]:
    """One metric of all rows of a frame."""
    means = [statistics.fmean(row) if row else None for row in values]
    known = [mean for mean in means if mean is not None]
    best = metric.best(known)
    significant = _differ_from_first(values, rows)
    entries: list[Entry | None] = []
    for mean, row, own, paper in zip(means, values, significant, published, strict=True):
        spread = statistics.stdev(row) if len(row) > 1 else None
        entries.append(None if mean is None else Entry(mean, spread, len(known) > 1 and mean == best, own, paper))
    return entries


def _differ_from_first(values: Sequence[Sequence[float]], rows: Sequence[Row]) -> list[bool]:
    """Which rows differ from the first: paired t-tests over the seeds that both have, with Holm's correction.

    A claim needs at least three such seeds.
    """
    found = [False] * len(values)
    if not values or any(len(value) != len(row.runs) for value, row in zip(values, rows, strict=True)):
        return found
    by_seed = [
        dict(zip((run.seed for run in row.runs), value, strict=True)) for row, value in zip(rows, values, strict=True)
    ]
    chances = {}
    for i, own in enumerate(by_seed[1:], start=1):
        shared = sorted(own.keys() & by_seed[0].keys())
        if len(shared) >= ENOUGH_SEEDS:
            chances[i] = paired_chance([own[seed] - by_seed[0][seed] for seed in shared])
    for i in pass_holm(chances):
        found[i] = True
    return found


def pass_holm(chances: Mapping[Key, float]) -> set[Key]:
    """Which of several p-values are significant together, by Holm's correction."""
    passed: set[Key] = set()
    for rank, key in enumerate(sorted(chances, key=lambda key: chances[key])):
        if chances[key] * (len(chances) - rank) >= LEVEL:
            break
        passed.add(key)
    return passed


def paired_chance(differences: Sequence[float]) -> float:
    """The two-sided p-value of a paired t-test."""
    from scipy.stats import t

    spread = statistics.stdev(differences)
    mean = statistics.fmean(differences)
    if spread <= 1e-12 * abs(mean) or spread == 0:
        return 1.0  # seeds that changed nothing are no evidence
    return float(2 * t.sf(abs(mean) / (spread / math.sqrt(len(differences))), len(differences) - 1))


def _of_ensemble(row: Row, metrics: Sequence[str]) -> dict[str, list[float]]:
    try:
        mean = score(joined([run.folder.path for run in row.runs]), row.runs[0].config.eval.ece_bins)
    except Different:
        mean = {}
    return {metric: [mean[metric]] if metric in mean else [] for metric in metrics}


def _published(row: Sequence[float | None] | None, columns: Sequence[str], metric: str) -> float | None:
    return None if row is None or metric not in columns else row[columns.index(metric)]


def _notes(collection: Collection, frames: Mapping[str, Sequence[Line]], ensembles: bool) -> list[str]:
    lines = [line for members in frames.values() for line in members]
    notes = []
    if ensembles and any(entry is None for line in lines for entry in line.entries):
        notes.append("- no ensemble: the row's runs were tested on different data.")
    compared = any(len(members) > 1 for members in frames.values())
    legend = [] if ensembles else ["mean ± standard deviation over seeds"]
    legend += ["the best of a group is bold"] if compared else []
    notes += [f"{'; '.join(legend).capitalize()}."] if legend else []
    if not ensembles and compared:
        if any(entry.significant for line in lines for entry in line.entries if entry):
            notes.append(
                f"† differs from the group's first row (paired t-test over seeds, {LEVEL:.0%}, Holm's correction)."
            )
        elif all(line.seeds < ENOUGH_SEEDS for line in lines):
            notes.append(f"Fewer than {ENOUGH_SEEDS} seeds: no difference here is called significant.")
        else:
            notes.append("No difference from a group's first row is significant at these seeds (paired t-test, Holm).")
    if "ece" in collection.columns and collection.runs:
        bins = sorted({run.config.eval.ece_bins for run in collection.runs})
        notes.append(f"ECE with {', '.join(map(str, bins))} bins.")
    signatures = {
        (name, signature)
        for run in collection.runs
        for name, signature in run.result.get("signatures", {}).items()
        if name in collection.columns
    }
    notes += [f"{METRICS[name].heading}: {signature}." for name, signature in sorted(signatures)]
    if collection.paper is not None and ensembles == collection.show.ensemble:
        table = collection.paper
        notes.append(f"In brackets or below: the paper's {table.table}{f' ({table.note})' if table.note else ''}.")
        changed = sorted({line for row in collection.rows for line in row.changed})
        if changed:
            more = f", and {len(changed) - 8} more" if len(changed) > 8 else ""
            notes.append(f"* other settings than the paper's (setting: paper, here): {'; '.join(changed[:8])}{more}.")
    return notes


def markdown_escaped(text: str) -> str:
    return "".join(f"\\{letter}" if letter in "\\|*_`<>[]" else letter for letter in text)


def _latex_escaped(text: str) -> str:
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "·": r"$\cdot$"}
    return "".join(special.get(letter, f"\\{letter}" if letter in "&%$#_{}" else letter) for letter in text)


MARKDOWN = Style(markdown_escaped, str, "**{}**", "†", "\\*")
LATEX = Style(
    _latex_escaped, lambda text: "$" + text.replace("±", r"\pm") + "$", r"{{\boldmath{}}}", r"$^\dagger$", r"$^*$"
)
