"""Results as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

COLUMNS = {
    "top1_error": ("Top-1 err (%)", "{:.2f}"),
    "top5_error": ("Top-5 err (%)", "{:.2f}"),
    "nll": ("NLL", "{:.4f}"),
    "ece": ("ECE (%)", "{:.2f}"),
    "aurc": ("AURC (x1000)", "{:.2f}"),
    "e_aurc": ("E-AURC (x1000)", "{:.2f}"),
}
PAPER_COLUMNS = ("top1_error", "top5_error", "nll", "ece", "aurc")


def result_lines(result: Mapping[str, Any]) -> list[str]:
    """One run's metrics, a line each."""
    return [
        f"{title:<16}{form.format(result[name]):>9}{_remark(name, result)}"
        for name, (title, form) in COLUMNS.items()
        if name in result
    ]


def comparison(results: Mapping[str, Mapping[str, Any]], metrics: tuple[str, ...]) -> list[str]:
    """Several runs side by side: a row each, in the paper's units; the best of a column is marked with a star."""
    best = {name: min(result[name] for result in results.values()) for name in metrics}
    header = ["", *(COLUMNS[name][0] for name in metrics)]
    rows = [
        [
            label,
            *(COLUMNS[name][1].format(result[name]) + ("*" if result[name] == best[name] else " ") for name in metrics),
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
    return ""
