"""Results as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pskd.errors import one_line
from pskd.metrics.catalogue import METRICS, metrics_of, paper_columns

MOST, WORST = 20, 10  # classes that are all shown, and how many are of more
CLASS_SCORES = ("recall", "precision", "f1")


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
    return [*lines, *_class_lines(result)]


def _class_lines(result: Mapping[str, Any]) -> list[str]:
    """A classifier's recall, precision and F1 of each class, of many the worst, and the most confused pairs."""
    by_class = {one_line(name): scores for name, scores in result.get("per_class", {}).items()}
    if not by_class:
        return []
    shown = (
        sorted(by_class, key=lambda name: by_class[name].get("f1", 0.0))[:WORST] if len(by_class) > MOST else by_class
    )
    title = f"The worst {WORST} of {len(by_class)} classes" if len(by_class) > MOST else "Class"
    width = max(map(len, [title, *shown]))
    lines = ["", f"{title:<{width}}  samples   recall  precision       F1"]
    for name in shown:
        numbers = [f"{100 * by_class[name][key]:.1f}%" if key in by_class[name] else "-" for key in CLASS_SCORES]
        lines.append(
            f"{name:<{width}}  {by_class[name]['samples']:>7,}  {numbers[0]:>7}  {numbers[1]:>9}  {numbers[2]:>7}"
        )
    pairs = [
        f"  {one_line(pair['label'])} taken for {one_line(pair['taken_for'])}: {pair['times']:,}"
        f" of {by_class[one_line(pair['label'])]['samples']:,} ({pair['share']:.1%})"
        for pair in result.get("most_confused", [])
    ]
    return [*lines, "", "Most confused:", *pairs] if pairs else lines


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
