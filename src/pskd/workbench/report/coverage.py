"""How much a classifier could answer if only so many of its answers may be wrong."""

from __future__ import annotations

from pskd.metrics.catalogue import Metric
from pskd.metrics.details import coverage_at_risk
from pskd.metrics.functional import risk_coverage_curve_from
from pskd.workbench.report.summary import Table, lines_of
from pskd.workbench.study.results import Collection, Row

RISKS = (1, 5, 10)  # % of the answers
KINDS = {f"coverage_at_{risk}": Metric(f"at {risk}% error", "%", "{:.1f}", higher_is_better=True) for risk in RISKS}


def coverage(collection: Collection) -> Table | None:
    """A table as the comparison: the share of the samples, the surest first, at each error rate."""
    if any(run.scores is None for run in collection.runs):
        return None
    frames = {
        frame: lines_of(rows, [_shares(row) for row in rows], KINDS, None) for frame, rows in collection.frames.items()
    }
    notes = [
        "How many of the samples, the surest first, can be answered if at most 1, 5 or 10% of the answers may be wrong."
    ]
    return Table("coverage", "Coverage at an error rate", list(KINDS), frames, notes, KINDS)


def _shares(row: Row) -> dict[str, list[float]]:
    curves = [risk_coverage_curve_from(*run.scores) for run in row.runs if run.scores is not None]
    return {
        name: [100 * coverage_at_risk(curve, risk / 100) for curve in curves]
        for name, risk in zip(KINDS, RISKS, strict=True)
    }
