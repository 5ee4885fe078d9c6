"""Results as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pskd.metrics.catalogue import METRICS, metrics_of, paper_columns


def result_lines(result: Mapping[str, Any]) -> list[str]:
    """One run's metrics, a line each; a detector's AP of each class too."""
    names = metrics_of(result)
    width = max([16, *(len(METRICS[name].heading) for name in names)])
    lines = [
        f"{METRICS[name].heading:<{width}}{METRICS[name].text(result[name]):>9}{_remark(name, result)}"
        for name in names
    ]
    if by_class := result.get("ap_per_class"):
        width = max(map(len, ["AP at IoU 0.5", *by_class]))
        lines += ["", f"{'AP at IoU 0.5':<{width}}    area  11-point"]
        other = result["ap_per_class_11point"]
        lines += [f"{name:<{width}}  {value:>7.4f}   {other[name]:>7.4f}" for name, value in by_class.items()]
    return lines


def comparison(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Several runs side by side, a row each with the paper's columns; the best of a column is marked with a star."""
    names = paper_columns(next(iter(results.values())))
    best = {name: METRICS[name].best(result[name] for result in results.values()) for name in names}
    rows = [["", *(METRICS[name].heading for name in names)]]
    for label, result in results.items():
        marked = (METRICS[name].text(result[name]) + ("*" if result[name] == best[name] else " ") for name in names)
        rows.append([label, *marked])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(n) for cell, n in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]


def _remark(name: str, result: Mapping[str, Any]) -> str:
    if name == "ece" and "ece_bins" in result:
        return f"  ({result['ece_bins']} bins)"
    if name == "top5_error" and result.get("num_classes", 5) < 5:
        return f"  (top {result['num_classes']}: there are no more classes)"
    return f"  ({signature})" if (signature := result.get("signatures", {}).get(name)) else ""
