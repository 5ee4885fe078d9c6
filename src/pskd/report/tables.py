"""Results as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pskd.metrics.catalogue import METRICS

PAPER_COLUMNS = ("top1_error", "top5_error", "nll", "ece", "aurc")


def result_lines(result: Mapping[str, Any]) -> list[str]:
    """One run's metrics, a line each; a detector's AP of each class too."""
    lines = [
        f"{metric.title:<16}{metric.form.format(result[name]):>9}{_remark(name, result)}"
        for name, metric in METRICS.items()
        if name in result
    ]
    if by_class := result.get("ap_per_class"):
        width = max(map(len, ["AP at IoU 0.5", *by_class]))
        lines += ["", f"{'AP at IoU 0.5':<{width}}    area  11-point"]
        other = result["ap_per_class_11point"]
        lines += [f"{name:<{width}}  {value:>7.4f}   {other[name]:>7.4f}" for name, value in by_class.items()]
    return lines


def comparison(results: Mapping[str, Mapping[str, Any]], metrics: tuple[str, ...]) -> list[str]:
    """Several runs side by side: a row each, in the paper's units; the best of a column is marked with a star."""
    best = {
        name: (max if METRICS[name].higher_is_better else min)(result[name] for result in results.values())
        for name in metrics
    }
    header = ["", *(METRICS[name].title for name in metrics)]
    rows = [
        [
            label,
            *(
                METRICS[name].form.format(result[name]) + ("*" if result[name] == best[name] else " ")
                for name in metrics
            ),
        ]
        for label, result in results.items()
    ]
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    return [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in [header, *rows]
    ]


def _remark(name: str, result: Mapping[str, Any]) -> str:
    if name == "ece" and "ece_bins" in result:
        return f"  ({result['ece_bins']} bins)"
    if name == "top5_error" and result.get("num_classes", 5) < 5:
        return f"  (top {result['num_classes']}: there are no more classes)"
    return f"  ({signature})" if (signature := result.get("signatures", {}).get(name)) else ""
