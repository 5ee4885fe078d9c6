"""Figures: each a name, a caption, a text for those who cannot see it, and a function that draws it."""

from __future__ import annotations

import io
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pskd.metrics import functional
from pskd.metrics.catalogue import METRICS
from pskd.runs.files import kind_errors
from pskd.study.results import Collection, Row, Scores

# Told apart on white and on black, by people who see no red or green too; and each has a marker of its own.
COLOURS = ("#7f7f7f", "#e08214", "#1f9e89", "#9467bd", "#d6453d", "#3b82d6", "#b5a11c", "#d65fa0", "#6b8e23", "#17a2b8")
MARKERS = "osD^vPX*<>"
INK = "#010203"  # stands for the page's own text colour
POINTS, LINES = 150, 10  # of a curve, and in a frame
FRAMES = 6  # of a collection that have figures
FEW = 0.05  # of the samples: a single wrong one among them would press a risk-coverage curve flat
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "pskd",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
}
FORMATS = ("svg", "pdf", "png")


@dataclass(frozen=True)
class Figure:
    """One picture. ``draw`` gets matplotlib axes; ``alt`` says in words what it shows."""

    kind: str
    name: str
    title: str
    alt: str
    draw: Callable[[Any], None]
    size: tuple[float, float] = (4.2, 3.4)  # inches

    def svg(self) -> str:
        """The picture as an element of a page, in the page's own text colour."""
        text = self._rendered("svg", transparent=True).decode()
        text = text[text.index("<svg") :].replace(INK, "currentColor")
        text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
        text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, flags=re.DOTALL)
        # A hundredth of a point is finer than any screen. Only inside of tags: the numbers on the axes are text.
        text = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\d\.\d\d)\d+", r"\1", tag[0]), text)
        # Every picture numbers its parts from 1: in one page they need names of their own.
        text = re.sub(r'(id="|url\(#|href="#)', rf"\1{self.name}-", text)
        return re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', "", text, count=1)

    def save(self, folder: Path) -> None:
        with kind_errors("figure"):
            folder.mkdir(parents=True, exist_ok=True)
            for form in FORMATS:
                (folder / f"{self.name}.{form}").write_bytes(self._rendered(form))

    def _rendered(self, form: str, *, transparent: bool = False) -> bytes:
        from matplotlib import rc_context
        from matplotlib.figure import Figure as Canvas

        ink = {} if form == "svg" and transparent else {key: "black" for key, value in STYLE.items() if value == INK}
        with rc_context({**STYLE, **ink}):
            canvas = Canvas(figsize=self.size, dpi=200)
            axes = canvas.add_subplot()
            self.draw(axes)
            # Margins in inches. Matplotlib's own layout engines take as long as all the rest.
            width, height = self.size
            handles, labels = axes.get_legend_handles_labels()
            lines = 0
            if len(labels) > 1:
                columns = max(1, min(len(labels), int(13 * width) // (max(map(len, labels)) + 5)))
                lines = -(-len(labels) // columns)
                canvas.legend(handles, labels, loc="lower center", ncols=columns, fontsize=8)
            left = 0.66 if self.kind != "per_class_ap" else 1.1
            below = 0.48 + (0.12 + 0.18 * lines if lines else 0)
            canvas.subplots_adjust(left / width, below / height, 1 - 0.12 / width, 1 - 0.1 / height)
            out = io.BytesIO()
            dates = {"Date": None} if form == "svg" else {"CreationDate": None} if form == "pdf" else None
            canvas.savefig(out, format=form, transparent=transparent, metadata=dates)
        return out.getvalue()


class Palette:
    """A colour and a marker for each label, the same in all frames of a collection."""

    def __init__(self, labels: Sequence[str]) -> None:
        self._places = {label: place for place, label in enumerate(dict.fromkeys(labels))}

    def __call__(self, label: str) -> dict[str, Any]:
        place = self._places[label]
        return {"color": COLOURS[place % len(COLOURS)], "marker": MARKERS[place % len(MARKERS)], "markersize": 3.5}


def figures(collection: Collection) -> list[Figure]:
    """All figures that the runs have data for, those that the study asks for first."""
    palette = Palette([row.short for row in collection.rows])
    found: list[Figure] = []
    for place, (frame, rows) in enumerate(list(collection.frames.items())[:FRAMES]):
        shown, left_out = _few(rows, collection.columns)
        about = " · ".join(filter(None, (frame, left_out)))
        suffix = f"-{place + 1}" if len(collection.frames) > 1 else ""
        for maker in (calibration, risk_coverage, reliability, curves, hard_examples, rescaling, per_class_ap):
            found += maker(shown, about, suffix, palette)
    found += ablation(collection)
    order = {kind: place for place, kind in enumerate(collection.show.first)}
    return sorted(found, key=lambda figure: order.get(figure.kind, len(order)))


def _few(rows: Sequence[Row], columns: Sequence[str]) -> tuple[Sequence[Row], str]:
    """Rows that fit into a frame: all, or the best by the first column."""
    if len(rows) <= LINES or not columns:
        return rows[:LINES], ""
    sign = -1 if METRICS[columns[0]].higher_is_better else 1
    best = sorted(rows, key=lambda row: sign * statistics.fmean(row.values(columns[0])))[:LINES]
    return [row for row in rows if row in best], f"the {LINES} best of {len(rows)} rows"


def _scores(row: Row) -> Scores | None:
    """Those of all seeds together."""
    parts = [run.scores for run in row.runs if run.scores is not None]
    return Scores(*(torch.cat(each) for each in zip(*parts, strict=True))) if parts else None


def _said(rows: Sequence[Row], metric: str) -> str:
    """`CE 23.01, PS-KD 15.88`"""
    form = METRICS[metric].form
    numbers = [(row.short, row.values(metric)) for row in rows]
    return ", ".join(f"{name} {form.format(statistics.fmean(values))}" for name, values in numbers if values)


def calibration(rows: Sequence[Row], frame: str, suffix: str, palette: Palette) -> Iterator[Figure]:
    """Accuracy over confidence, all methods in one frame."""
    scored = [(row, scores) for row in rows if (scores := _scores(row)) is not None]
    if not scored:
        return

    def draw(axes: Any) -> None:
        axes.plot([0, 1], [0, 1], "--", color=INK, alpha=0.5, linewidth=1)
        for row, scores in scored:
            bins = functional.reliability_bins_from(*scores, row.runs[0].config.eval.ece_bins)
            filled = bins.counts > 0
            axes.plot(bins.confidence[filled], bins.accuracy[filled], label=row.short, **palette(row.short))
        axes.set(xlabel="confidence", ylabel="accuracy", xlim=(0, 1.01), ylim=(0, 1.01))

    alt = f"Accuracy over confidence; the diagonal is perfect calibration. ECE in %: {_said(rows, 'ece')}."
    yield Figure("calibration", f"calibration{suffix}", _titled("Calibration", frame), alt, draw)


def risk_coverage(rows: Sequence[Row], frame: str, suffix: str, palette: Palette) -> Iterator[Figure]:
    """The error rate among the most confident samples."""
    scored = [(row, scores) for row in rows if (scores := _scores(row)) is not None]
    if not scored:
        return

    def draw(axes: Any) -> None:
        highest = 0.01
        for row, scores in scored:
            curve = functional.risk_coverage_curve_from(*scores)
            highest = max(highest, float(curve.risk[curve.coverage >= FEW].max()))
            take = torch.linspace(0, len(curve.risk) - 1, min(POINTS, len(curve.risk))).long()
            style = palette(row.short) | {"marker": None}
            axes.plot(curve.coverage[take], 100 * curve.risk[take], label=row.short, **style)
        axes.set(xlabel="coverage", ylabel="error of what is covered (%)", xlim=(0, 1), ylim=(0, 105 * highest))

    alt = f"Error rate among the most confident samples, over their share. AURC x 1000: {_said(rows, 'aurc')}."
    yield Figure("risk_coverage", f"risk-coverage{suffix}", _titled("Risk and coverage", frame), alt, draw)


def reliability(rows: Sequence[Row], frame: str, suffix: str, palette: Palette) -> Iterator[Figure]:
    """One diagram for each row, with the number of samples on each bin."""
    for place, row in enumerate(rows):
        scores = _scores(row)
        if scores is None:
            continue
        bins = functional.reliability_bins_from(*scores, row.runs[0].config.eval.ece_bins)

        def draw(axes: Any, bins: functional.ReliabilityBins = bins, row: Row = row) -> None:
            edges, counts, confidence, accuracy = (part.numpy() for part in bins)
            filled, width = counts > 0, edges[1]
            left, right, sure = edges[:-1][filled], accuracy[filled], confidence[filled]
            low, high = np.minimum(right, sure), np.maximum(right, sure)
            colour = palette(row.short)["color"]
            axes.bar(left, right, 0.94 * width, align="edge", color=colour, alpha=0.65, label="accuracy")
            gap = {
                "facecolor": "none",
                "hatch": "////",
                "edgecolor": INK,
                "linewidth": 0.4,
                "label": "gap to confidence",
            }
            axes.bar(left, high - low, 0.94 * width, low, align="edge", **gap)
            axes.plot([0, 1], [0, 1], "--", color=INK, alpha=0.5, linewidth=1)
            for x, top, count in zip(left, high, counts[filled], strict=True):
                axes.text(x + width / 2, top + 0.015, f"{count:,}", ha="center", va="bottom", fontsize=5.5)
            axes.set(xlabel="confidence", ylabel="accuracy", xlim=(0, 1), ylim=(0, 1.08))

        counts = ", ".join(f"{int(count):,}" for count in bins.counts)
        seeds = f"{len(row.runs)} seeds together, " if len(row.runs) > 1 else ""
        alt = (
            f"Accuracy by confidence of {row.name}; {seeds}samples per bin: {counts}. ECE in %: {_said([row], 'ece')}."
        )
        yield Figure(
            "reliability",
            f"reliability{suffix}-{place + 1}",
            _titled("Reliability", " · ".join(filter(None, (frame, row.short)))),
            alt,
            draw,
            (3.6, 3.2),
        )


def curves(rows: Sequence[Row], frame: str, suffix: str, palette: Palette) -> Iterator[Figure]:
    """Training loss, metrics and alpha_t over the epochs; the band goes from the lowest to the highest seed."""
    split = "val" if any("val" in record for row in rows for run in row.runs for record in run.epochs) else "test"
    titles = {"train_loss": "training loss", "alpha_t": "alpha_t"}
    titles |= {name: f"{split} {metric.title}" for name, metric in METRICS.items() if metric.line is not None}
    for name, title in titles.items():
        lines = {row.short: line for row in rows if (line := _over_epochs(row, name)) is not None}
        if not lines:
            continue

        def draw(axes: Any, lines: Mapping[str, Any] = lines, title: str = title) -> None:
            for label, (epochs, values) in lines.items():
                style = palette(label) | {"marker": "." if len(epochs) < 3 else None, "linewidth": 1.2}
                axes.plot(epochs, values.mean(0), label=label, **style)
                if len(values) > 1:
                    axes.fill_between(epochs, values.min(0), values.max(0), color=style["color"], alpha=0.15, lw=0)
            axes.set(xlabel="epoch", ylabel=title, ylim=_without_the_start(lines))

        last = ", ".join(f"{label} {values.mean(0)[-1]:.4g}" for label, (_, values) in lines.items())
        yield Figure(
            "curves",
            f"curve-{name.replace('_', '-')}{suffix}",
            _titled(f"{title[0].upper()}{title[1:]} over the epochs", frame),
            f"In the last one: {last}.",
            draw,
        )


def _without_the_start(lines: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> tuple[float, float] | None:
    """Limits of what comes after the first fifth, where that would be pressed flat by what comes before."""
    late = np.concatenate([values[:, len(epochs) // 5 :].ravel() for epochs, values in lines.values()])
    everything = np.concatenate([values.ravel() for _, values in lines.values()])
    low, high = float(late.min()), float(late.max())
    margin = 0.08 * (high - low)
    return None if np.ptp(everything) <= 3 * (high - low) else (low - margin, high + margin)


def _over_epochs(row: Row, name: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Epochs (E) and values (seeds, E) of those that all seeds have; thinned to what a picture can show."""
    series = []
    for run in row.runs:
        own = {}
        for record in run.epochs:
            value = record.get(name, record.get("val", record.get("test", {})).get(name))
            if value is not None:
                own[record["epoch"]] = value
        series.append(own)
    shared = sorted(set.intersection(*(set(own) for own in series)))
    if not shared:
        return None
    epochs = np.array(shared)[np.unique(np.linspace(0, len(shared) - 1, min(POINTS, len(shared))).astype(int))]
    return epochs, np.array([[own[int(epoch)] for epoch in epochs] for own in series])


def hard_examples(rows: Sequence[Row], frame: str, suffix: str, palette: Palette) -> Iterator[Figure]:
    """Figure 2: the same hard samples for every method."""
    from pskd.analysis.hard import over_training

    found = over_training(rows)
    if found is None:
        return
    for part, title in (("target", "Target probability"), ("maximum", "Maximum probability")):
        lines = {label: getattr(line, part) for label, line in found.lines.items()}

        def draw(axes: Any, lines: Mapping[str, np.ndarray] = lines, title: str = title) -> None:
            for label, values in lines.items():
                epochs = np.unique(np.linspace(0, len(values) - 1, min(POINTS, len(values))).astype(int))
                style = palette(label) | {"marker": None, "linewidth": 1.2}
                axes.plot(epochs + 1, values[epochs], label=label, **style)
            axes.set(xlabel="epoch", ylabel=f"mean {title.lower()}", ylim=(0, 1))

        last = ", ".join(f"{label} {values[-1]:.3f}" for label, values in lines.items())
        yield Figure(
            "hard_examples",
            f"hard-{part}{suffix}",
            _titled(f"{title} of hard samples", frame),
            f"{title} of the {found.samples} samples that {found.baseline} was right on least often"
            f" (in at most {found.most_often} of {found.epochs} epochs). In the last epoch: {last}.",
            draw,
        )


def rescaling(rows: Sequence[Row], frame: str, suffix: str, palette: Palette) -> Iterator[Figure]:
    """The gradient's rescaling by PS-KD, and how many samples meet its condition."""
    from pskd.analysis.hard import rescaling as measured

    lines = {row.short: line for row in rows if (line := measured(row)) is not None}
    if not lines:
        return

    def draw_factor(axes: Any) -> None:
        for label, line in lines.items():
            style = palette(label) | {"marker": None}
            axes.plot(line.epochs, line.median, label=label, **style)
            axes.fill_between(line.epochs, line.lower, line.upper, color=style["color"], alpha=0.15, lw=0)
        axes.set(xlabel="epoch", ylabel="gradient rescaling factor", ylim=(0, 1.02))

    def draw_share(axes: Any) -> None:
        for label, line in lines.items():
            axes.plot(line.epochs, 100 * line.share, label=label, **(palette(label) | {"marker": None}))
        axes.set(xlabel="epoch", ylabel="samples that meet the condition (%)", ylim=(0, 102))

    last = ", ".join(f"{label} {line.median[-1]:.2f}" for label, line in lines.items())
    share = ", ".join(f"{label} {line.share[-1]:.0%}" for label, line in lines.items())
    yield Figure(
        "rescaling",
        f"rescaling{suffix}",
        _titled("Gradient rescaling", frame),
        "1 - alpha * gamma(t-1) / gamma(t) of the samples that meet its condition: median, and the middle half as a"
        f" band. In the last epoch: {last}.",
        draw_factor,
    )
    yield Figure(
        "rescaling",
        f"rescaling-share{suffix}",
        _titled("Where the rescaling holds", frame),
        f"Share of samples with alpha at most p(t) / p(t-1) for all other classes. In the last epoch: {share}.",
        draw_share,
    )


def per_class_ap(rows: Sequence[Row], frame: str, suffix: str, palette: Palette) -> Iterator[Figure]:
    """Average precision of each class, of detectors."""
    tables = {
        row.short: [run.metrics["ap_per_class"] for run in row.runs if "ap_per_class" in run.metrics] for row in rows
    }
    tables = {label: of_runs for label, of_runs in tables.items() if of_runs}
    if not tables:
        return
    classes = sorted({name for of_runs in tables.values() for one in of_runs for name in one})

    def draw(axes: Any) -> None:
        height = 0.8 / len(tables)
        for place, (label, of_runs) in enumerate(tables.items()):
            means = [np.mean([one[name] for one in of_runs if name in one] or [np.nan]) for name in classes]
            at = np.arange(len(classes)) + (place - (len(tables) - 1) / 2) * height
            axes.barh(at, means, height, color=palette(label)["color"], label=label)
        axes.set(xlabel="average precision", yticks=range(len(classes)), yticklabels=classes)
        axes.invert_yaxis()

    alt = f"Average precision of each of {len(classes)} classes for {', '.join(tables)}."
    size = (4.6, 1.2 + 0.12 * len(classes) * (1 + len(tables)))
    yield Figure("per_class_ap", f"per-class-ap{suffix}", _titled("AP by class", frame), alt, draw, size)


def ablation(collection: Collection) -> Iterator[Figure]:
    """Metrics over the study's x axis: mean and standard deviation over seeds, and each seed as a dot."""
    x = collection.show.x
    rows = [row for row in collection.rows if x in row.labels] if x else []
    for metric in collection.columns if rows else ():
        at = [float(row.labels[x]) for row in rows]  # type: ignore[index]
        values = [row.values(metric) for row in rows]

        def draw(axes: Any, metric: str = metric, at: list[float] = at, values: list[list[float]] = values) -> None:
            for place, own in zip(at, values, strict=True):
                axes.plot([place] * len(own), own, ".", color=COLOURS[0], alpha=0.6, markersize=4)
            spread = [statistics.stdev(own) if len(own) > 1 else 0.0 for own in values]
            means = [statistics.fmean(own) for own in values]
            axes.errorbar(at, means, spread, color=COLOURS[5], marker="o", markersize=4, capsize=2)
            axes.set(xlabel=x, ylabel=f"{collection.show.split} {METRICS[metric].title}")

        said = ", ".join(f"{place:g}: {statistics.fmean(own):.4g}" for place, own in zip(at, values, strict=True))
        yield Figure(
            "ablation",
            f"ablation-{metric.replace('_', '-')}",
            f"{METRICS[metric].title} over {x}",
            f"Mean {METRICS[metric].title} over {x}: {said}.",
            draw,
        )


def _titled(title: str, frame: str) -> str:
    return f"{title}: {frame}" if frame else title
