"""Results as text, for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pskd.errors import one_line
from pskd.metrics.catalogue import METRICS, metrics_of, paper_columns

MOST, WORST = 20, 10  # so many classes are all shown; of more only the worst
CLASS_SCORES = ("recall", "precision", "f1")


def result_lines(result: Mapping[str, Any]) -> list[str]:
    """The metrics of one run, a line each, and its scores of each class."""
    names = metrics_of(result)
    width = max([16, *(len(METRICS[name].heading) for name in names)])
    lines = [
        f"{METRICS[name].heading:<{width}}{METRICS[name].text(result[name]):>9}{_remark(name, result)}"
        for name in names
    ]
    if by_class := result.get("ap_per_class"):
        width = max(map(len, ["AP at IoU 0.5", *by_class]))
        lines += ["", f"{'AP at IoU 0.5':<{width}}    area  11-point"]
        points = result["ap_per_class_11point"]
        lines += [f"{name:<{width}}  {area:>7.4f}   {points[name]:>7.4f}" for name, area in by_class.items()]
    return [*lines, *_class_lines(result)]


def _class_lines(result: Mapping[str, Any]) -> list[str]:
    """A classifier's recall, precision and F1 of each class (of many the worst), and the most confused pairs."""
    classes = {one_line(name): scores for name, scores in result.get("per_class", {}).items()}
    if not classes:
        return []
    shown, title = list(classes), "Class"
    if len(classes) > MOST:
        shown = sorted(classes, key=lambda name: classes[name].get("f1", 0.0))[:WORST]
        title = f"The worst {WORST} of {len(classes)} classes"
    width = max(map(len, [title, *shown]))
    lines = ["", f"{title:<{width}}  samples   recall  precision       F1"]
    for name in shown:
        scores = classes[name]
        recall, precision, f1 = (f"{100 * scores[key]:.1f}%" if key in scores else "-" for key in CLASS_SCORES)
        lines.append(f"{name:<{width}}  {scores['samples']:>7,}  {recall:>7}  {precision:>9}  {f1:>7}")
    if pairs := result.get("most_confused", []):
        lines += ["", "Most confused:"]
    for pair in pairs:
        label, other = one_line(pair["label"]), one_line(pair["taken_for"])
        count = f"{pair['times']:,} of {classes[label]['samples']:,}"
        lines.append(f"  {label} taken for {other}: {count} ({pair['share']:.1%})")
    return lines


def comparison(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Several runs, a line each, with the paper's columns; a star marks the best of a column."""
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
