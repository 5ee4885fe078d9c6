"""The comparison in the paper's form: means and deviations over seeds, the best of each frame, the paper's numbers."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pskd.metrics.catalogue import METRICS, Metric
from pskd.workbench.analysis.ensembles import Different, joined, score
from pskd.workbench.report.significance import (
    BETTER,
    DIFFERENT,
    ENOUGH_SEEDS,
    LEVEL,
    WORSE,
    interval,
    paired_chance,
    pass_holm,
    verdict,
)
from pskd.workbench.study.cells import Paper
from pskd.workbench.study.results import Collection, Row, baseline_of

QUOTED = "literature"  # the group of rows that the paper quotes


class Entry(NamedTuple):
    """One number of the table, in the metric's own units."""

    mean: float
    deviation: float | None = None  # sample standard deviation over seeds; None for fewer than two
    best: bool = False  # of its frame
    verdict: str = ""  # better, worse or different, where it differs significantly from the frame's baseline
    paper: float | None = None
    low: float | None = None  # of the 95% interval: of the baseline's mean, of another row's difference from it
    high: float | None = None
    p: float | None = None  # of the paired test against the baseline, before any correction


class Line(NamedTuple):
    label: str
    seeds: int
    entries: Sequence[Entry | None]  # one for each metric
    changed: bool  # whether it has other settings than the paper
    baseline: bool = False  # what the others of its frame are compared with


class Style(NamedTuple):
    """How a table is written in some language: functions of a text, and marks."""

    escaped: Callable[[str], str]
    number: Callable[[str], str]
    bold: str
    marks: Mapping[str, str]  # of verdicts
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
        return "-" if entry is None else f"{self.text(metric, entry.mean)} {self.spread(metric, entry)}".rstrip()

    def spread(self, metric: str, entry: Entry) -> str:
        """`± 0.11`"""
        return "" if entry.deviation is None else f"± {self.text(metric, entry.deviation)}"

    def arrow(self, metric: str) -> str:
        """Which way is good."""
        return {True: "↑", False: "↓", None: ""}[self.kinds[metric].higher_is_better]

    def change(self, metric: str, entry: Entry) -> str:
        """`↓ better`: how a number differs from the baseline's."""
        up = (entry.verdict == BETTER) == bool(self.kinds[metric].higher_is_better)
        return f"{'≠' if entry.verdict == DIFFERENT else '↑' if up else '↓'} {entry.verdict}"

    @property
    def has_intervals(self) -> bool:
        return any(entry.low is not None for line in self._every_line for entry in line.entries if entry)

    @property
    def _every_line(self) -> list[Line]:
        return [line for lines in self.frames.values() for line in lines]

    def interval(self, metric: str, entry: Entry) -> str:
        """`19.10 to 22.54`, and with signs where it is one of differences"""
        if entry.low is None or entry.high is None:
            return ""
        signs = ("+" if entry.p is not None and bound > 0 else "" for bound in (entry.low, entry.high))
        low, high = (
            sign + self.text(metric, bound) for sign, bound in zip(signs, (entry.low, entry.high), strict=True)
        )
        return f"{low} to {high}"

    @property
    def minor(self) -> list[str]:
        """The metrics that a narrow screen shows on request only: those that are drawn nowhere either, if any is."""
        drawn = [name for name in self.metrics if self.kinds[name].curve]
        return [name for name in self.metrics if name not in drawn] if drawn else []

    def csv(self) -> str:
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        parts = Entry._fields
        writer.writerow(["frame", "row", "seeds", *(f"{name} {part}" for name in self.metrics for part in parts)])
        for frame, lines in self.frames.items():
            for line in lines:
                cells = [value for entry in line.entries for value in (entry or [None] * len(parts))]
                writer.writerow([frame, line.label, line.seeds, *("" if cell is None else cell for cell in cells)])
        return out.getvalue()

    def markdown(self) -> str:
        lines = [["", "seeds", *self.header], ["---"] * (len(self.metrics) + 2), *self._lines(MARKDOWN)]
        notes = [*self.notes, *self._legend]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n\n" + "\n\n".join(notes) + "\n"

    def latex(self) -> str:
        header = " & ".join(["", "seeds", *map(_latex_escaped, self.header)])
        rows = "\n".join("    " + " & ".join(line) + r" \\" for line in self._lines(LATEX))
        notes = "".join(f"% {note}\n" for note in (*self.notes, *self._legend))
        return (
            f"% {self.title}; needs \\usepackage{{booktabs}}\n{notes}"
            f"\\begin{{tabular}}{{lr{'c' * len(self.metrics)}}}\n    \\toprule\n    {header} \\\\\n    \\midrule\n"
            f"{rows}\n    \\bottomrule\n\\end{{tabular}}\n"
        )

    @property
    def _legend(self) -> list[str]:
        """What the marks of verdicts mean; the page says them in words."""
        said = dict.fromkeys(entry.verdict for line in self._every_line for entry in line.entries if entry)
        marks = [f"{MARKDOWN.marks[word]} {word}" for word in (BETTER, WORSE, DIFFERENT) if word in said]
        return [f"{', '.join(marks)}."] if marks else []

    def _lines(self, style: Style) -> list[list[str]]:
        lines = []
        for frame, members in self.frames.items():
            for line in members:
                cells = [style.escaped(" · ".join(filter(None, (frame, line.label)))), str(line.seeds)]
                for metric, entry in zip(self.metrics, line.entries, strict=True):
                    text = style.number(self.shown(metric, entry))
                    if entry is not None:
                        text = (style.bold if entry.best else "{}").format(text)
                        text += style.marks.get(entry.verdict, "")
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
    split = "Validation" if collection.show.split == "val" else "Test"
    title = "Ensembles of each row's seeds" if ensembles else f"{split} set, last epoch"
    return Table("ensembles" if ensembles else "comparison", title, metrics, frames, notes)


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
    return Table("by-class", "Average precision by class", tuple(classes), frames, notes, classes)


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
    baseline = None if len(rows) < 2 else next(place for place, row in enumerate(rows) if row is baseline_of(rows))
    for name, metric in metrics.items():
        published = [_published(paper.rows.get(row.key), paper.columns, name) if paper else None for row in rows]
        columns.append(_column(metric, [of_row[name] for of_row in numbers], published, rows, baseline or 0))
    return [
        Line(row.short, len(row.runs), [column[i] for column in columns], bool(row.changed), i == baseline)
        for i, row in enumerate(rows)
    ]


def _quoted(paper: Paper, metrics: Sequence[str]) -> list[Line]:
    lines = []
    for label, row in paper.literature.items():
        values = [_published(row, paper.columns, metric) for metric in metrics]
        lines.append(Line(label, 0, [None if value is None else Entry(value) for value in values], changed=False))
    return lines


def _column(
    metric: Metric,
    values: Sequence[Sequence[float]],
    published: Sequence[float | None],
    rows: Sequence[Row],
    baseline: int,
) -> list[Entry | None]:
    """One metric of all rows of a frame: paired t-tests over the seeds that a row shares with the baseline.

    A verdict needs at least three such seeds, and stands Holm's correction for the number of rows.
    """
    means = [statistics.fmean(row) if row else None for row in values]
    known = [mean for mean in means if mean is not None]
    best = metric.best(known) if len(set(known)) > 1 else None
    differences = _differences(values, rows, baseline)
    chances = {place: paired_chance(own) for place, own in differences.items() if len(own) >= ENOUGH_SEEDS}
    sure = pass_holm(chances)
    entries: list[Entry | None] = []
    for place, (mean, row, paper) in enumerate(zip(means, values, published, strict=True)):
        if mean is None:
            entries.append(None)
            continue
        spread = statistics.stdev(row) if len(row) > 1 else None
        own = row if place == baseline else differences.get(place, [])
        word = verdict(metric, statistics.fmean(own)) if place in sure else ""
        low, high = interval(own) or (None, None)
        entries.append(Entry(mean, spread, mean == best, word, paper, low, high, chances.get(place)))
    return entries


def _differences(values: Sequence[Sequence[float]], rows: Sequence[Row], baseline: int) -> dict[int, list[float]]:
    """Of each row but the baseline, by seeds that both have; of none where a run lacks the metric."""
    if not values or any(len(value) != len(row.runs) for value, row in zip(values, rows, strict=True)):
        return {}
    by_seed = [
        dict(zip((run.seed for run in row.runs), value, strict=True)) for row, value in zip(rows, values, strict=True)
    ]
    first = by_seed[baseline]
    return {
        place: [own[seed] - first[seed] for seed in sorted(own.keys() & first.keys())]
        for place, own in enumerate(by_seed)
        if place != baseline
    }


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
    spread = any(entry.deviation is not None for line in lines for entry in line.entries if entry)
    legend = ["mean ± standard deviation over seeds"] if spread and not ensembles else []
    legend += ["the best of a group is bold"] if compared else []
    notes += [f"{'; '.join(legend).capitalize()}."] if legend else []
    if not ensembles and compared:
        notes += _on_significance(frames)
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


def _on_significance(frames: Mapping[str, Sequence[Line]]) -> list[str]:
    lines = [line for members in frames.values() for line in members]
    names = dict.fromkeys(line.label for line in lines if line.baseline)
    baseline = next(iter(names)) if len(names) == 1 else "the group's baseline"
    test = f"paired t-test over seeds, {LEVEL:.0%}, Holm's correction"
    if any(entry.verdict for line in lines for entry in line.entries if entry):
        notes = [f"Better or worse than {baseline} where that is said ({test}); all else is not significant."]
    elif all(line.seeds < ENOUGH_SEEDS for line in lines):
        return [f"Fewer than {ENOUGH_SEEDS} seeds: no difference here is called significant."]
    else:
        notes = [f"No difference from {baseline} is significant at these seeds ({test})."]
    if any(line.seeds < ENOUGH_SEEDS for line in lines):
        notes.append(f"Of rows with fewer than {ENOUGH_SEEDS} seeds no difference is called significant.")
    return notes


def markdown_escaped(text: str) -> str:
    return "".join(f"\\{letter}" if letter in "\\|*_`<>[]" else letter for letter in text)


def _latex_escaped(text: str) -> str:
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "·": r"$\cdot$"}
    return "".join(special.get(letter, f"\\{letter}" if letter in "&%$#_{}" else letter) for letter in text)


MARKDOWN = Style(markdown_escaped, str, "**{}**", {BETTER: "†", WORSE: "‡", DIFFERENT: "†"}, "\\*")
LATEX = Style(
    _latex_escaped,
    lambda text: "$" + text.replace("±", r"\pm") + "$",
    r"{{\boldmath{}}}",
    {BETTER: r"$^\dagger$", WORSE: r"$^\ddagger$", DIFFERENT: r"$^\dagger$"},
    r"$^*$",
)
