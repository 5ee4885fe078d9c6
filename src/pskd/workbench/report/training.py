"""Figures of what happens while a model is trained: curves over the epochs, hard examples, gradient rescaling."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pskd.metrics.catalogue import METRICS, is_number, metrics_of
from pskd.workbench.analysis import hard
from pskd.workbench.report.figure import POINTS, Figure, Palette, over_epochs, slug, titled
from pskd.workbench.study.results import Row

FLAT = 0.05  # of an axis from 0 to 1: what differs by less is one straight line
NOT_DRAWN = ("epoch", "seconds", "lr")  # of an epoch's record


def curves(rows: Sequence[Row], frame: str, suffix: str, palette: Palette) -> Iterator[Figure]:
    """Whatever the epochs' records hold; the band goes from the lowest to the highest seed."""
    splits = _splits(rows)
    for name, title in _recorded(rows, splits).items():
        lines = {row.short: line for row in rows if (line := _over_epochs(row, name)) is not None}
        if not lines:
            continue

        def draw(axes: Any, lines: Mapping[str, Any] = lines, title: str = title) -> None:
            for label, (epochs, values) in lines.items():
                style = palette.line(label)
                axes.plot(epochs, values.mean(0), label=label, **style)
                if len(values) > 1:
                    axes.fill_between(epochs, values.min(0), values.max(0), color=style["color"], alpha=0.15, lw=0)
            axes.set(ylabel=title, ylim=_without_the_start(lines))
            over_epochs(axes)

        last = ", ".join(f"{label} {values.mean(0)[-1]:.4g}" for label, (_, values) in lines.items())
        counts = sorted({len(values) for _, values in lines.values()})
        seeds = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
        alone = next(iter(lines)) if len(lines) == 1 < len(rows) else ""  # a single line has no legend
        yield Figure(
            "curves",
            f"curve-{slug(name if len(splits) > 1 else name.removeprefix('val.').removeprefix('test.'))}{suffix}",
            titled(f"{title[0].upper()}{title[1:]} over the epochs", " · ".join(filter(None, (frame, alone)))),
            f"In the last one: {last}.",
            draw,
            caption=" ".join(
                [f"Mean of {seeds} seeds; band: lowest to highest."] * (counts[-1] > 1)
                + ["The first epochs are off the scale."] * (_without_the_start(lines) is not None)
            ),
        )


def _splits(rows: Sequence[Row]) -> list[str]:
    """The splits that epochs were evaluated on: one, or both where only some runs have a validation split."""
    records = [record for row in rows for run in row.runs for record in run.epochs]
    return [split for split in ("val", "test") if any(split in record for record in records)]


def _recorded(rows: Sequence[Row], splits: Sequence[str]) -> dict[str, str]:
    """What there is to draw, with its title: the loss, its parts, what the method logs, and metrics of each split."""
    records = [record for row in rows for run in row.runs for record in run.epochs]
    logged = dict.fromkeys(name for record in records for name, value in record.items() if is_number(value))
    titles = {"train_loss": "training loss"}
    if any(len(record.get("loss_parts", ())) > 1 for record in records):  # a single part is the whole loss
        parts = dict.fromkeys(part for record in records for part in record.get("loss_parts", ()))
        said = {part: part.removeprefix("loss_").replace("_", " ") for part in parts}
        titles |= {f"loss_parts.{part}": f"training loss: {name}" for part, name in said.items()}
    titles |= {name: name.removesuffix("_t") for name in logged if name not in ("train_loss", *NOT_DRAWN)}
    for split in splits:
        evaluated: dict[str, Any] = {}
        for record in records:
            evaluated |= record.get(split, {})
        names = [name for name in metrics_of(evaluated) if METRICS[name].curve]
        titles |= {f"{split}.{name}": f"{split} {METRICS[name].heading}" for name in names}
    return titles


def _value(record: Mapping[str, Any], name: str) -> Any:
    """A number of an epoch's record: `train_loss`, `loss_parts.cross_entropy`, `val.ece`."""
    part, _, own = name.partition(".")
    return record.get(part, {}).get(own) if part in ("loss_parts", "val", "test") else record.get(name)


def _without_the_start(lines: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> tuple[float, float] | None:
    """Limits of what comes after the first fifth, where that would be pressed flat by what comes before."""
    late = np.concatenate([values[:, len(epochs) // 5 :].ravel() for epochs, values in lines.values()])
    everything = np.concatenate([values.ravel() for _, values in lines.values()])
    low, high = float(late.min()), float(late.max())
    margin = 0.08 * (high - low)
    return None if np.ptp(everything) <= 3 * (high - low) else (low - margin, high + margin)


def _over_epochs(row: Row, name: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Epochs (E) and values (seeds, E) of those that all seeds have, two at least; thinned to what can be seen."""
    series = [
        {record["epoch"]: value for record in run.epochs if (value := _value(record, name)) is not None}
        for run in row.runs
    ]
    shared = sorted(set.intersection(*(set(own) for own in series)))
    if len(shared) < 2:
        return None
    epochs = np.array(shared)[np.unique(np.linspace(0, len(shared) - 1, min(POINTS, len(shared))).astype(int))]
    return epochs, np.array([[own[int(epoch)] for epoch in epochs] for own in series])


def hard_examples(rows: Sequence[Row], frame: str, suffix: str, palette: Palette) -> Iterator[Figure]:
    """Figure 2: the same hard samples for every method."""
    found = hard.over_training(rows)
    if found is None:
        return
    for part, title in (("target", "Target probability"), ("maximum", "Maximum probability")):
        lines = {label: getattr(line, part) for label, line in found.lines.items()}
        if max(map(len, lines.values())) < 2:
            return

        def draw(axes: Any, lines: Mapping[str, np.ndarray] = lines, title: str = title) -> None:
            for label, values in lines.items():
                epochs = np.unique(np.linspace(0, len(values) - 1, min(POINTS, len(values))).astype(int))
                axes.plot(epochs + 1, values[epochs], label=label, **palette.line(label))
            axes.set(ylabel=f"mean {title.lower()}", ylim=(0, 1))
            over_epochs(axes)

        last = ", ".join(f"{label} {values[-1]:.3f}" for label, values in lines.items())
        yield Figure(
            "hard_examples",
            f"hard-{part}{suffix}",
            titled(f"{title} of hard samples", frame),
            f"{title} of hard samples. In the last epoch: {last}.",
            draw,
            caption=f"The {found.samples} samples that {found.baseline} was right on least often"
            f" (in at most {found.most_often} of {found.epochs} epochs).",
            flat=_is_flat(lines.values()),
        )


def _is_flat(lines: Iterable[np.ndarray]) -> bool:
    """Whether lines on an axis from 0 to 1 are straight, and on top of each other."""
    everything = np.concatenate([line[np.isfinite(line)] for line in lines])
    return len(everything) == 0 or float(np.ptp(everything)) < FLAT


def rescaling(rows: Sequence[Row], frame: str, suffix: str, palette: Palette) -> Iterator[Figure]:
    """The gradient's rescaling by PS-KD, and how many samples meet its condition."""
    lines = {
        row.short: line
        for row in rows
        if (line := hard.rescaling(row)) is not None and np.isfinite(line.median).sum() > 1
    }
    if not lines:
        return

    def draw_factor(axes: Any) -> None:
        for label, line in lines.items():
            style = palette.line(label)
            axes.plot(line.epochs, line.median, label=label, **style)
            axes.fill_between(line.epochs, line.lower, line.upper, color=style["color"], alpha=0.15, lw=0)
        axes.set(ylabel="gradient rescaling factor", ylim=(0, 1.02))
        over_epochs(axes)

    def draw_share(axes: Any) -> None:
        for label, line in lines.items():
            axes.plot(line.epochs, 100 * line.share, label=label, **palette.line(label))
        axes.set(ylabel="samples that meet the condition (%)", ylim=(0, 102))
        over_epochs(axes)

    last = ", ".join(f"{label} {line.median[-1]:.2f}" for label, line in lines.items())
    share = ", ".join(f"{label} {line.share[-1]:.0%}" for label, line in lines.items())
    yield Figure(
        "rescaling",
        f"rescaling{suffix}",
        titled("Gradient rescaling", frame),
        f"The factor of the gradient, median over samples. In the last epoch: {last}.",
        draw_factor,
        caption="1 - alpha * gamma(t-1) / gamma(t) of the samples that meet its condition: median, and the middle half"
        " as a band.",
        flat=_is_flat(part for line in lines.values() for part in (line.lower, line.upper)),
    )
    yield Figure(
        "rescaling",
        f"rescaling-share{suffix}",
        titled("Where the rescaling holds", frame),
        f"The share of samples that are rescaled. In the last epoch: {share}.",
        draw_share,
        caption="The condition: alpha is at most p(t) / p(t-1) for all other classes.",
        flat=_is_flat(line.share for line in lines.values()),
    )
