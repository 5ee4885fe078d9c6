"""Average precision of each class, of detectors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from pskd.workbench.report.figure import HOVER, Figure
from pskd.workbench.report.figures import Frame, figure


@figure("per_class_ap", section="Average precision by class", place=70)
def draw_per_class_ap(frame: Frame) -> Iterator[Figure]:
    """A bar for each class and row: the mean over its seeds."""
    runs = {
        row.short: [run.metrics["ap_per_class"] for run in row.runs if "ap_per_class" in run.metrics]
        for row in frame.rows
    }
    runs = {label: tables for label, tables in runs.items() if tables}
    if not runs:
        return
    classes = sorted({name for tables in runs.values() for table in tables for name in table})

    def draw(axes: Any) -> None:
        height = 0.8 / len(runs)
        for place, (label, tables) in enumerate(runs.items()):
            means = [np.mean([table[name] for table in tables if name in table] or [np.nan]) for name in classes]
            y = np.arange(len(classes)) + (place - (len(runs) - 1) / 2) * height
            bars = axes.barh(y, means, height, color=frame.palette(label)["color"], label=label)
            for bar, name, mean in zip(bars, classes, means, strict=True):
                bar.set_gid(f"{HOVER}{label}, {name}: {mean:.4f}")
        axes.set(xlabel="average precision", yticks=range(len(classes)), yticklabels=classes)
        axes.invert_yaxis()

    several = any(len(tables) > 1 for tables in runs.values())
    yield Figure(
        "per_class_ap",
        f"per-class-ap{frame.suffix}",
        frame.title("AP by class"),
        f"Average precision of each of {len(classes)} classes for {', '.join(runs)}.",
        draw,
        (4.6, 1.2 + 0.12 * len(classes) * (1 + len(runs))),
        f"At IoU 0.5{', mean over seeds' if several else ''}.",
    )
