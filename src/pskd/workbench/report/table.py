"""A table of numbers, written as CSV, Markdown and LaTeX; the page has a template of its own for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pskd.metrics.catalogue import Metric
from pskd.workbench.report.significance import BETTER, DIFFERENT, WORSE
from pskd.workbench.runs.files import csv_text


class TableCell(NamedTuple):
    """One number, in the metric's own units."""

    mean: float
    deviation: float | None = None  # sample standard deviation over seeds; None for fewer than two
    best: bool = False  # of its group
    verdict: str = ""  # better, worse or different, where it differs significantly from the group's baseline
    paper: float | None = None
    low: float | None = None  # 95% interval of the baseline's mean, or of another row's difference from it
    high: float | None = None
    p: float | None = None  # of the paired test against the baseline, before any correction


class TableLine(NamedTuple):
    """One row: a cell for each metric, None where there is no number."""

    label: str
    seeds: int
    cells: Mapping[str, TableCell | None]
    changed: bool = False  # whether it has other settings than the paper
    baseline: bool = False  # what the others of its group are compared with


class Style(NamedTuple):
    """How a format writes a table: functions of a text, and marks."""

    escape: Callable[[str], str]
    number: Callable[[str], str]
    bold: str
    marks: Mapping[str, str]  # of verdicts
    star: str


@dataclass(frozen=True)
class Table:
    """Lines in groups, one column for each metric.

    Args:
        name: the name of its files.
        title: the title above it.
        section: the part of the page that it stands in.
        about: how to read the section.
    """

    name: str
    title: str
    section: str
    metrics: Mapping[str, Metric]
    frames: Mapping[str, Sequence[TableLine]]
    notes: Sequence[str]
    about: str = ""

    @property
    def lines(self) -> list[TableLine]:
        return [line for lines in self.frames.values() for line in lines]

    @property
    def cells(self) -> list[TableCell]:
        return [cell for line in self.lines for cell in line.cells.values() if cell is not None]

    @property
    def has_intervals(self) -> bool:
        return any(cell.low is not None for cell in self.cells)

    @property
    def minor(self) -> list[str]:
        """The metrics that a narrow screen shows on request only: those without curves, unless no metric has any."""
        minor = [name for name, metric in self.metrics.items() if not metric.curve]
        return minor if len(minor) < len(self.metrics) else []

    def text(self, metric: str, value: float) -> str:
        return self.metrics[metric].text(value)

    def shown(self, metric: str, cell: TableCell | None) -> str:
        """`20.82 ± 0.11`"""
        return "-" if cell is None else f"{self.text(metric, cell.mean)} {self.spread(metric, cell)}".rstrip()

    def spread(self, metric: str, cell: TableCell) -> str:
        """`± 0.11`"""
        return "" if cell.deviation is None else f"± {self.text(metric, cell.deviation)}"

    def change(self, metric: str, cell: TableCell) -> str:
        """`↓ better`: how a number differs from the baseline's."""
        up = (cell.verdict == BETTER) == bool(self.metrics[metric].higher_is_better)
        return f"{'≠' if cell.verdict == DIFFERENT else '↑' if up else '↓'} {cell.verdict}"

    def interval(self, metric: str, cell: TableCell) -> str:
        """`19.10 to 22.54`, with signs for an interval of differences."""
        if cell.low is None or cell.high is None:
            return ""
        bounds = (("+" if cell.p is not None and x > 0 else "") + self.text(metric, x) for x in (cell.low, cell.high))
        return " to ".join(bounds)

    def csv(self) -> str:
        parts = TableCell._fields
        names = [f"{name} {part}" for name in self.metrics for part in parts]
        table: list[list[Any]] = [["frame", "row", "seeds", *names]]
        for frame, lines in self.frames.items():
            for line in lines:
                values = [value for cell in line.cells.values() for value in (cell or [None] * len(parts))]
                table.append([frame, line.label, line.seeds, *("" if value is None else value for value in values)])
        return csv_text(table)

    def markdown(self) -> str:
        head = ["", "seeds", *(metric.heading for metric in self.metrics.values())]
        lines = [head, ["---"] * len(head), *self._write_lines(MARKDOWN)]
        text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        return "\n\n".join([text, *self.notes, *self._legend()]) + "\n"

    def latex(self) -> str:
        header = " & ".join(["", "seeds", *(escape_latex(metric.heading) for metric in self.metrics.values())])
        lines = "\n".join("    " + " & ".join(line) + r" \\" for line in self._write_lines(LATEX))
        notes = "".join(f"% {note}\n" for note in (*self.notes, *self._legend()))
        return (
            f"% {self.title}; needs \\usepackage{{booktabs}}\n{notes}"
            f"\\begin{{tabular}}{{lr{'c' * len(self.metrics)}}}\n    \\toprule\n    {header} \\\\\n    \\midrule\n"
            f"{lines}\n    \\bottomrule\n\\end{{tabular}}\n"
        )

    def _legend(self) -> list[str]:
        """What the marks of verdicts mean. The page has the verdicts in words instead."""
        verdicts = {cell.verdict for cell in self.cells}
        marks = [f"{MARKDOWN.marks[word]} {word}" for word in (BETTER, WORSE, DIFFERENT) if word in verdicts]
        return [f"{', '.join(marks)}."] if marks else []

    def _write_lines(self, style: Style) -> list[list[str]]:
        lines = []
        for frame, members in self.frames.items():
            for line in members:
                texts = [style.escape(" · ".join(filter(None, (frame, line.label)))), str(line.seeds)]
                for metric, cell in line.cells.items():
                    text = style.number(self.shown(metric, cell))
                    if cell is not None:
                        text = (style.bold if cell.best else "{}").format(text) + style.marks.get(cell.verdict, "")
                        if cell.paper is not None:
                            text += f" (paper {self.text(metric, cell.paper)}{style.star * line.changed})"
                    texts.append(text)
                lines.append(texts)
        return lines


def escape_markdown(text: str) -> str:
    return "".join(f"\\{letter}" if letter in "\\|*_`<>[]" else letter for letter in text)


def escape_latex(text: str) -> str:
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "·": r"$\cdot$"}
    return "".join(special.get(letter, f"\\{letter}" if letter in "&%$#_{}" else letter) for letter in text)


MARKDOWN = Style(escape_markdown, str, "**{}**", {BETTER: "†", WORSE: "‡", DIFFERENT: "†"}, "\\*")
LATEX = Style(
    escape_latex,
    lambda text: "$" + text.replace("±", r"\pm") + "$",
    r"{{\boldmath{}}}",
    {BETTER: r"$^\dagger$", WORSE: r"$^\ddagger$", DIFFERENT: r"$^\dagger$"},
    r"$^*$",
)
