"""Curves over the epochs: the loss, its parts, metrics, and whatever a method logs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pskd.metrics.catalogue import METRICS, is_number, metrics_of
from pskd.workbench.report.figure import POINTS, Figure, label_epochs, slug
from pskd.workbench.report.figures import Frame, figure
from pskd.workbench.study.results import Row

NOT_DRAWN = ("epoch", "seconds", "lr", "train_loss")  # of the numbers of an epoch's record; the loss comes first anyway
SPLITS = ("val", "test")


@figure("curves", section="Training", place=40)
def draw_curves(frame: Frame) -> Iterator[Figure]:
    """One figure for each recorded number; the band goes from the lowest to the highest seed."""
    records = [record for row in frame.rows for run in row.runs for record in run.epochs]
    for name, title in _recorded_numbers(records).items():
        lines = {row.short: line for row in frame.rows if (line := _line_of(row, name)) is not None}
        if not lines:
            continue
        limits = _limits_without_start(lines)

        def draw(axes: Any, lines: Any = lines, title: str = title, limits: Any = limits) -> None:
            for label, (epochs, values) in lines.items():
                style = frame.palette.line(label)
                axes.plot(epochs, values.mean(0), label=label, **style)
                if len(values) > 1:
                    axes.fill_between(epochs, values.min(0), values.max(0), color=style["color"], alpha=0.15, lw=0)
            axes.set(ylabel=title, ylim=limits)
            label_epochs(axes)

        last = ", ".join(f"{label} {values.mean(0)[-1]:.4g}" for label, (_, values) in lines.items())
        counts = sorted({len(values) for _, values in lines.values()})
        seeds = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
        caption = [f"Mean of {seeds} seeds; band: lowest to highest."] * (counts[-1] > 1)
        caption += ["The first epochs are off the scale."] * (limits is not None)
        alone = next(iter(lines)) if len(lines) == 1 < len(frame.rows) else ""  # a single line has no legend
        only = len(_splits(records)) < 2  # its name need not be in that of the file
        yield Figure(
            "curves",
            f"curve-{slug(name.removeprefix('val.').removeprefix('test.') if only else name)}{frame.suffix}",
            frame.title(f"{title[0].upper()}{title[1:]} over the epochs", alone),
            f"In the last one: {last}.",
            draw,
            caption=" ".join(caption),
        )


def _splits(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """The splits that epochs were evaluated on: both if only some of the runs have a validation split."""
    return [split for split in SPLITS if any(split in record for record in records)]


def _recorded_numbers(records: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """What can be drawn, with its title: the loss and its parts, what the method logs, the metrics of each split."""
    titles = {"train_loss": "training loss"}
    if any(len(record.get("loss_parts", ())) > 1 for record in records):  # a single part is the whole loss
        parts = dict.fromkeys(part for record in records for part in record.get("loss_parts", ()))
        titles |= {
            f"loss_parts.{part}": f"training loss: {part.removeprefix('loss_').replace('_', ' ')}" for part in parts
        }
    logged = dict.fromkeys(name for record in records for name, value in record.items() if is_number(value))
    titles |= {name: name.removesuffix("_t") for name in logged if name not in NOT_DRAWN}
    for split in _splits(records):
        evaluated = {name: value for record in records for name, value in record.get(split, {}).items()}
        names = [name for name in metrics_of(evaluated) if METRICS[name].curve]
        titles |= {f"{split}.{name}": f"{split} {METRICS[name].heading}" for name in names}
    return titles


def _value(record: Mapping[str, Any], name: str) -> Any:
    """A number of an epoch's record: `train_loss`, `loss_parts.cross_entropy`, `val.ece`."""
    part, _, own = name.partition(".")
    return record.get(part, {}).get(own) if part in ("loss_parts", *SPLITS) else record.get(name)


def _limits_without_start(lines: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> tuple[float, float] | None:
    """Limits of the y axis without the first fifth of the epochs, if that fifth would flatten the rest."""
    late = np.concatenate([values[:, len(epochs) // 5 :].ravel() for epochs, values in lines.values()])
    everything = np.concatenate([values.ravel() for _, values in lines.values()])
    low, high = float(late.min()), float(late.max())
    margin = 0.08 * (high - low)
    return None if np.ptp(everything) <= 3 * (high - low) else (low - margin, high + margin)


def _line_of(row: Row, name: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Epochs (E) and values (seeds, E) of the epochs that all seeds have, at most as many as can be seen.

    None with fewer than two.
    """
    series = [
        {record["epoch"]: value for record in run.epochs if (value := _value(record, name)) is not None}
        for run in row.runs
    ]
    shared = sorted(set.intersection(*map(set, series)))
    if len(shared) < 2:
        return None
    epochs = np.array(shared)[np.unique(np.linspace(0, len(shared) - 1, min(POINTS, len(shared))).astype(int))]
    return epochs, np.array([[values[int(epoch)] for epoch in epochs] for values in series])
