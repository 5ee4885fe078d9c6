"""Rows of a report without any training: runs that have the numbers which a test gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from pskd.workbench.study.results import Row


def make_row(
    labels: str | dict[str, str],
    numbers: Mapping[str, Sequence[Any]] | None = None,
    method: str = "ps_kd",
    *,
    changed: Sequence[str] = (),
    **fields: Any,
) -> Row:
    """A row with a run for each seed; ``numbers`` are lists by metric, ``fields`` are equal in all runs."""
    numbers = numbers or {}
    config = SimpleNamespace(
        method=SimpleNamespace(name=method),
        model=SimpleNamespace(name="resnet8"),
        task="classification",
        eval=SimpleNamespace(ece_bins=10),
    )
    runs: Any = []
    for seed in range(max(map(len, numbers.values()), default=1)):
        own = {"scores": None, "history": None, "predictions": lambda: None, "epochs": [], "result": {}, **fields}
        metrics = {name: values[seed] for name, values in numbers.items()}
        runs.append(SimpleNamespace(seed=seed, config=config, metrics=metrics, **own))
    return Row({"method": labels} if isinstance(labels, str) else labels, runs, changed)
