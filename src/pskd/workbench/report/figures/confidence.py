"""How well confidence fits accuracy: calibration, risk and coverage, reliability diagrams."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from pskd.metrics import functional
from pskd.workbench.report.figure import HOVER, INK, POINTS, Figure
from pskd.workbench.report.figures import Frame, figure, means_in_words, scores_of

SECTION = "Calibration and confidence"
SMALLEST_SHARE = 0.05  # of the samples: a single wrong one among fewer would flatten a risk-coverage curve
ENOUGH_SAMPLES = 10  # in a bin, for its accuracy to mean something
NUMBERED_BINS = 20  # bins that have room for the number of their samples
BANDS = 4  # bands that can be told apart


@figure("calibration", section=SECTION, place=10)
def draw_calibration(frame: Frame) -> Iterator[Figure]:
    """Accuracy over confidence, all methods in one frame."""
    scored = [(row, scores) for row in frame.rows if (scores := scores_of(row)) is not None]
    if not scored:
        return

    def draw(axes: Any) -> None:
        _draw_diagonal(axes)
        for row, scores in scored:
            bins = functional.reliability_bins_from(*scores, row.runs[0].config.eval.ece_bins)
            counts = bins.counts.numpy() / len(row.runs)
            enough = counts >= ENOUGH_SAMPLES
            x, y, counts = bins.confidence.numpy()[enough], bins.accuracy.numpy()[enough], counts[enough]
            style = frame.palette(row.short)
            (line,) = axes.plot(x, y, label=row.short, linewidth=1.2, **(style | {"markersize": 2.4}))
            line.notes = [f"{count:,.0f} samples" for count in counts]
            sizes = 6 + 90 * counts / max(1, len(scores.correct) / len(row.runs))
            axes.scatter(x, y, sizes, color=style["color"], marker=style["marker"], zorder=3, linewidths=0)
            if len(scored) <= BANDS:
                axes.fill_between(x, *_wilson_interval(y, counts), color=style["color"], alpha=0.15, lw=0)
        axes.set(xlabel="confidence", ylabel="accuracy", xlim=(0, 1.01), ylim=(0, 1.01))

    alt = (
        f"Accuracy over confidence; the diagonal is perfect calibration. ECE in %: {means_in_words(frame.rows, 'ece')}."
    )
    bands = "; bands: 95% intervals" if len(scored) <= BANDS else ""
    caption = f"On the diagonal accuracy equals confidence. Larger marks: more samples{bands}."
    title, name = frame.title("Calibration"), f"calibration{frame.suffix}"
    yield Figure("calibration", name, title, alt, draw, caption=caption)


@figure("risk_coverage", section=SECTION, place=11)
def draw_risk_coverage(frame: Frame) -> Iterator[Figure]:
    """The error rate among the most confident samples."""
    scored = [(row, scores) for row in frame.rows if (scores := scores_of(row)) is not None]
    if not scored:
        return

    def draw(axes: Any) -> None:
        highest = 0.01
        for row, scores in scored:
            curve = functional.risk_coverage_curve_from(*scores)
            highest = max(highest, float(curve.risk[curve.coverage >= SMALLEST_SHARE].max()))
            points = torch.linspace(0, len(curve.risk) - 1, min(POINTS, len(curve.risk))).long()
            style = frame.palette.line(row.short)
            axes.plot(curve.coverage[points], 100 * curve.risk[points], label=row.short, **style)
        axes.set(xlabel="coverage", ylabel="error of what is covered (%)", xlim=(0, 1.01), ylim=(0, 105 * highest))

    aurc = means_in_words(frame.rows, "aurc")
    alt = f"Error rate among the most confident samples, over their share. AURC x 1000: {aurc}."
    caption = "The error if a model answers only where it is most confident. Lower is better."
    title, name = frame.title("Risk and coverage"), f"risk-coverage{frame.suffix}"
    yield Figure("risk_coverage", name, title, alt, draw, caption=caption)


@figure(
    "reliability",
    section="Reliability diagrams",
    place=20,
    of="row",
    about="How often a method is right, by how confident it is. Hatched: by how much its confidence is too high or too"
    " low. Pale: too few samples to tell.",
)
def draw_reliability(frame: Frame) -> Iterator[Figure]:
    """Accuracy and its gap to the confidence in each bin, with the number of samples."""
    (row,) = frame.rows
    scores = scores_of(row)
    if scores is None:
        return
    bins = functional.reliability_bins_from(*scores, row.runs[0].config.eval.ece_bins)

    def draw(axes: Any) -> None:
        from matplotlib.patches import Rectangle

        edges, counts, confidence, accuracy = (part.numpy() for part in bins)
        filled, width = counts > 0, edges[1]
        left, counts, confidence, accuracy = edges[:-1][filled], counts[filled], confidence[filled], accuracy[filled]
        enough = counts >= ENOUGH_SAMPLES * len(row.runs)
        low, high = np.minimum(accuracy, confidence), np.where(enough, np.maximum(accuracy, confidence), accuracy)
        colour = frame.palette(row.short)["color"]
        axes.add_patch(Rectangle((0, 0), 0, 0, color=colour, alpha=0.65, label="accuracy"))
        bars = axes.bar(left, accuracy, 0.94 * width, align="edge", color=colour)
        hatched = {"facecolor": "none", "hatch": "////", "edgecolor": INK, "linewidth": 0.4}
        heights = (high - low)[enough]
        axes.bar(left[enough], heights, 0.94 * width, low[enough], align="edge", label="gap to confidence", **hatched)
        _draw_diagonal(axes)
        for bar, is_enough, count, mean, right in zip(bars, enough, counts, confidence, accuracy, strict=True):
            bar.set_alpha(0.65 if is_enough else 0.2)
            bar.set_gid(f"{HOVER}{count:,} samples: confidence {mean:.3f}, accuracy {right:.3f}")
        if len(bins.counts) <= NUMBERED_BINS:
            for x, y, count in zip(left + width / 2, high + 0.015, counts, strict=True):
                text = f"{count / 1000:.1f}k" if count >= 10_000 else f"{count:,}"
                axes.text(x, y, text, ha="center", va="bottom", fontsize=5.5)
        axes.set(xlabel="confidence", ylabel="accuracy", xlim=(0, 1), ylim=(0, 1.08))

    counts = ", ".join(f"{int(count):,}" for count in bins.counts)
    seeds, ece = f"{len(row.runs)} seeds together", means_in_words([row], "ece")
    several = len(row.runs) > 1
    yield Figure(
        "reliability",
        f"reliability{frame.suffix}",
        frame.title("Reliability"),
        f"Accuracy by confidence of {row.name}; {f'{seeds}, ' * several}samples per bin: {counts}. ECE in %: {ece}.",
        draw,
        (3.6, 3.2),
        f"Numbers: samples of a bin{f', {seeds}' * several}. ECE {ece}%.",
    )


def _draw_diagonal(axes: Any) -> None:
    axes.plot([0, 1], [0, 1], "--", color=INK, alpha=0.5, linewidth=1)


def _wilson_interval(share: np.ndarray, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Wilson's 95% interval of a share of ``count`` samples."""
    z = 1.96
    centre = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    margin = z / (1 + z**2 / count) * np.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    return centre - margin, centre + margin
