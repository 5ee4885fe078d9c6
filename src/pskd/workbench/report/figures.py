"""The figures of a collection: calibration, confidence and what a study varies; `training.py` has the others."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from pskd.metrics import functional
from pskd.metrics.catalogue import METRICS
from pskd.workbench.report.confusion import confusions
from pskd.workbench.report.figure import COLOURS, INK, POINTS, SAID, Figure, Palette, slug, titled
from pskd.workbench.report.maps import maps
from pskd.workbench.report.training import curves, hard_examples, rescaling
from pskd.workbench.study.results import Collection, Row, Scores, axis_name, baseline_of, subject_of

LINES = len(COLOURS)  # in a frame
FRAMES = 6  # of a collection that have figures
FEW = 0.05  # of the samples: a single wrong one among them would press a risk-coverage curve flat
LEAST = 10  # samples of a bin that says something
NUMBERED = 20  # bins that have room for the number of their samples
BANDS = 4  # lines at most whose bands can be told apart


def figures(collection: Collection) -> list[Figure]:
    """All figures that the runs have data for, those that the study asks for first."""
    frames = {frame: _few(rows, collection.columns) for frame, rows in list(collection.frames.items())[:FRAMES]}
    palette = Palette([row.short for shown, _ in frames.values() for row in shown])
    found: list[Figure] = []
    for place, (frame, (shown, left_out)) in enumerate(frames.items()):
        suffix = f"-{place + 1}" if len(collection.frames) > 1 else ""
        for maker in (
            calibration,
            risk_coverage,
            reliability,
            confusions,
            curves,
            hard_examples,
            rescaling,
            per_class_ap,
        ):
            of_all_rows = maker not in (reliability, confusions)
            about = " · ".join(filter(None, (frame, left_out if of_all_rows else "")))
            found += maker(shown, about, suffix, palette)
    found += ablation(collection)
    found += maps(collection)
    order = {kind: place for place, kind in enumerate(collection.show.first)}
    return sorted(found, key=lambda figure: order.get(figure.kind, len(order)))


def _few(rows: Sequence[Row], columns: Sequence[str]) -> tuple[Sequence[Row], str]:
    """Rows that fit into a frame: all, or the baseline, what is compared with it, and the best of the others.

    The best are those by the first column that has a best; without one they are the first.
    """
    if len(rows) <= LINES:
        return rows, ""
    always = [baseline_of(rows), subject_of(rows)]
    others = [row for row in rows if row not in always]
    by = next((name for name in columns if METRICS[name].higher_is_better is not None), None)
    if by is not None:
        others.sort(key=lambda row: METRICS[by].cost(statistics.fmean(row.values(by))))
    shown = [*always, *others[: LINES - len(always)]]
    names, count = ", ".join(row.short for row in always), LINES - len(always)
    said = f"{names} and the {'first' if by is None else 'best'} {count} of {len(others)} others"
    return [row for row in rows if row in shown], said


def _scores(row: Row) -> Scores | None:
    """Those of all seeds together."""
    parts = [run.scores for run in row.runs if run.scores is not None]
    return Scores(*(torch.cat(each) for each in zip(*parts, strict=True))) if parts else None


def _means(rows: Sequence[Row], metric: str, *, named: bool = True) -> str:
    """`CE 23.01, PS-KD 15.88`"""
    numbers = [(f"{row.short} " if named else "", row.values(metric)) for row in rows]
    means = ((name, METRICS[metric].text(statistics.fmean(values))) for name, values in numbers if values)
    return ", ".join(f"{name}{mean}" for name, mean in means)


def calibration(rows: Sequence[Row], frame: str, suffix: str, palette: Palette) -> Iterator[Figure]:
    """Accuracy over confidence, all methods in one frame."""
    scored = [(row, scores) for row in rows if (scores := _scores(row)) is not None]
    if not scored:
        return

    def draw(axes: Any) -> None:
        axes.plot([0, 1], [0, 1], "--", color=INK, alpha=0.5, linewidth=1)
        for row, scores in scored:
            bins = functional.reliability_bins_from(*scores, row.runs[0].config.eval.ece_bins)
            counts = bins.counts.numpy() / len(row.runs)
            kept = counts >= LEAST
            x, y, counts = bins.confidence.numpy()[kept], bins.accuracy.numpy()[kept], counts[kept]
            style = palette(row.short)
            (line,) = axes.plot(x, y, label=row.short, linewidth=1.2, **(style | {"markersize": 2.4}))
            line.notes = [f"{count:,.0f} samples" for count in counts]
            sizes = 6 + 90 * counts / max(1, len(scores.correct) / len(row.runs))
            axes.scatter(x, y, sizes, color=style["color"], marker=style["marker"], zorder=3, linewidths=0)
            if len(scored) <= BANDS:
                axes.fill_between(x, *_wilson(y, counts), color=style["color"], alpha=0.15, lw=0)
        axes.set(xlabel="confidence", ylabel="accuracy", xlim=(0, 1.01), ylim=(0, 1.01))

    alt = f"Accuracy over confidence; the diagonal is perfect calibration. ECE in %: {_means(rows, 'ece')}."
    bands = "; bands: 95% intervals" if len(scored) <= BANDS else ""
    caption = f"On the diagonal a model is as often right as it says. Larger marks: more samples{bands}."
    yield Figure("calibration", f"calibration{suffix}", titled("Calibration", frame), alt, draw, caption=caption)


def _wilson(share: np.ndarray, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Wilson's 95% interval of a share of ``count`` samples."""
    z = 1.96
    centre = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    margin = z / (1 + z**2 / count) * np.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    return centre - margin, centre + margin


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
            axes.plot(curve.coverage[take], 100 * curve.risk[take], label=row.short, **palette.line(row.short))
        axes.set(xlabel="coverage", ylabel="error of what is covered (%)", xlim=(0, 1.01), ylim=(0, 105 * highest))

    alt = f"Error rate among the most confident samples, over their share. AURC x 1000: {_means(rows, 'aurc')}."
    caption = "The error if a model answers only where it is surest. Lower is better."
    title = titled("Risk and coverage", frame)
    yield Figure("risk_coverage", f"risk-coverage{suffix}", title, alt, draw, caption=caption)


def reliability(rows: Sequence[Row], frame: str, suffix: str, palette: Palette) -> Iterator[Figure]:
    """One diagram for each row, with the number of samples on each bin."""
    for place, row in enumerate(rows):
        scores = _scores(row)
        if scores is None:
            continue
        bins = functional.reliability_bins_from(*scores, row.runs[0].config.eval.ece_bins)

        def draw(axes: Any, bins: functional.ReliabilityBins = bins, row: Row = row) -> None:
            from matplotlib.patches import Rectangle

            edges, counts, confidence, accuracy = (part.numpy() for part in bins)
            filled, width = counts > 0, edges[1]
            left, right, sure = edges[:-1][filled], accuracy[filled], confidence[filled]
            telling = counts[filled] >= LEAST * len(row.runs)
            low, high = np.minimum(right, sure), np.where(telling, np.maximum(right, sure), right)
            colour = palette(row.short)["color"]
            axes.add_patch(Rectangle((0, 0), 0, 0, color=colour, alpha=0.65, label="accuracy"))
            bars = axes.bar(left, right, 0.94 * width, align="edge", color=colour)
            gap = {
                "facecolor": "none",
                "hatch": "////",
                "edgecolor": INK,
                "linewidth": 0.4,
                "label": "gap to confidence",
            }
            axes.bar(left[telling], (high - low)[telling], 0.94 * width, low[telling], align="edge", **gap)
            axes.plot([0, 1], [0, 1], "--", color=INK, alpha=0.5, linewidth=1)
            shown = zip(bars, telling, right, sure, counts[filled], strict=True)
            for bar, tells, right_share, confident, count in shown:
                bar.set_alpha(0.65 if tells else 0.2)
                bar.set_gid(f"{SAID}{count:,} samples: confidence {confident:.3f}, accuracy {right_share:.3f}")
            for x, top, count in zip(left, high, counts[filled], strict=True) if len(counts) <= NUMBERED else ():
                axes.text(x + width / 2, top + 0.015, _short(count), ha="center", va="bottom", fontsize=5.5)
            axes.set(xlabel="confidence", ylabel="accuracy", xlim=(0, 1), ylim=(0, 1.08))

        counts = ", ".join(f"{int(count):,}" for count in bins.counts)
        seeds = f"{len(row.runs)} seeds together, " if len(row.runs) > 1 else ""
        alt = (
            f"Accuracy by confidence of {row.name}; {seeds}samples per bin: {counts}. ECE in %: {_means([row], 'ece')}."
        )
        yield Figure(
            "reliability",
            f"reliability{suffix}-{place + 1}",
            titled("Reliability", " · ".join(filter(None, (frame, row.short)))),
            alt,
            draw,
            (3.6, 3.2),
            f"Numbers: samples of a bin{f', {len(row.runs)} seeds together' if seeds else ''}."
            f" ECE {_means([row], 'ece', named=False)}%.",
        )


def _short(count: int) -> str:
    return f"{count / 1000:.1f}k" if count >= 10_000 else f"{count:,}"


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
            bars = axes.barh(at, means, height, color=palette(label)["color"], label=label)
            for bar, name, mean in zip(bars, classes, means, strict=True):
                bar.set_gid(f"{SAID}{label}, {name}: {mean:.4f}")
        axes.set(xlabel="average precision", yticks=range(len(classes)), yticklabels=classes)
        axes.invert_yaxis()

    alt = f"Average precision of each of {len(classes)} classes for {', '.join(tables)}."
    size = (4.6, 1.2 + 0.12 * len(classes) * (1 + len(tables)))
    repeated = any(len(of_runs) > 1 for of_runs in tables.values())
    title, caption = titled("AP by class", frame), f"At IoU 0.5{', mean over seeds' if repeated else ''}."
    yield Figure("per_class_ap", f"per-class-ap{suffix}", title, alt, draw, size, caption)


def ablation(collection: Collection) -> Iterator[Figure]:
    """Metrics over the study's x axis: mean and standard deviation over seeds, and each seed as a dot."""
    x = collection.show.x
    rows = [row for row in collection.rows if x in row.labels] if x else []
    name = axis_name(x or "")
    for metric in collection.columns if rows else ():
        at = [float(row.labels[x]) for row in rows]  # type: ignore[index]
        values = [row.values(metric) for row in rows]

        def draw(axes: Any, metric: str = metric, at: list[float] = at, values: list[list[float]] = values) -> None:
            for place, own in zip(at, values, strict=True):
                axes.plot([place] * len(own), own, ".", color=COLOURS[0], alpha=0.6, markersize=4)
            spread = [statistics.stdev(own) if len(own) > 1 else 0.0 for own in values]
            centre = [statistics.fmean(own) for own in values]
            bars = axes.errorbar(at, centre, spread, color=COLOURS[5], marker="o", markersize=4, capsize=2)
            bars.lines[0].set_label(METRICS[metric].heading)
            axes.set(xlabel=name, ylabel=f"{collection.show.split} {METRICS[metric].heading}")

        means = ", ".join(f"{place:g}: {statistics.fmean(own):.4g}" for place, own in zip(at, values, strict=True))
        yield Figure(
            "ablation",
            f"ablation-{slug(metric)}",
            f"{METRICS[metric].heading} over {name}",
            f"Mean {METRICS[metric].heading} over {name}: {means}.",
            draw,
            caption="Dots: seeds; bars: their standard deviation.",
        )
