"""Figures of the record of every training sample: hard examples, and how past predictions rescale gradients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from pskd.workbench.report.figure import POINTS, Figure, label_epochs
from pskd.workbench.report.figures import Frame, figure
from pskd.workbench.study.results import FinishedRun, Row, plain_row

HARD, HARD_SHARE = 100, 10  # so many samples are hard, and at most one in ten
RESCALED_EPOCHS = 60  # points of a rescaling curve at most
PART = 2**20  # samples that are read at a time
FLAT = 0.05  # on an axis from 0 to 1: lines that differ by less look like one straight line


class Rescaling(NamedTuple):
    """By epoch, from the second one on: quartiles over the samples that meet the condition, and their share."""

    epochs: np.ndarray
    lower: np.ndarray
    median: np.ndarray
    upper: np.ndarray
    share: np.ndarray


@figure(
    "hard_examples",
    section="Hard examples",
    place=50,
    about="The training samples that the plain model gets right least often: how much probability each method gives to"
    " their true class and to its own favourite while it learns.",
)
def draw_hard_examples(frame: Frame) -> Iterator[Figure]:
    """Figure 2: the same hard samples for every method.

    They are hard for the first plain run with a record. Of each row the first run is shown that saw the same data.
    """
    plain = plain_row(frame.rows)
    baseline = None if plain is None else next((run for run in plain.runs if run.history is not None), None)
    if plain is None or baseline is None or baseline.history is None:
        return
    times_right = baseline.history.times_correct()
    hardest = np.argsort(times_right, kind="stable")[: max(1, min(HARD, len(times_right) // HARD_SHARE))]
    recorded = {}
    for row in frame.rows:
        same_data = (run.history for run in row.runs if _data_of(run) == _data_of(baseline))
        if (history := next(filter(None, same_data), None)) is not None:
            recorded[row.short] = history.of(samples=np.sort(hardest))
    epochs, most_often = baseline.history.num_epochs, int(times_right[hardest].max())
    if epochs < 2:
        return
    for name, title in (("target", "Target probability"), ("maximum", "Maximum probability")):
        lines = {label: _mean(getattr(record, name)) for label, record in recorded.items()}

        def draw(axes: Any, title: str = title, lines: Mapping[str, np.ndarray] = lines) -> None:
            for label, values in lines.items():
                places = _spread_out(len(values), POINTS)
                axes.plot(places + 1, values[places], label=label, **frame.palette.line(label))
            axes.set(ylabel=f"mean {title.lower()}", ylim=(0, 1))
            label_epochs(axes)

        last = ", ".join(f"{label} {values[-1]:.3f}" for label, values in lines.items())
        yield Figure(
            "hard_examples",
            f"hard-{name}{frame.suffix}",
            frame.title(f"{title} of hard samples"),
            f"{title} of hard samples. In the last epoch: {last}.",
            draw,
            caption=f"The {len(hardest)} samples that {plain.short} was right on least often (in at most {most_often}"
            f" of {epochs} epochs).",
            flat=_are_flat(lines.values()),
        )


@figure(
    "rescaling",
    section="Gradient rescaling",
    place=60,
    about="PS-KD takes smaller steps on samples that its past predictions already knew: a factor of 1 is plain"
    " training, 0 learns nothing from a sample.",
)
def draw_rescaling(frame: Frame) -> Iterator[Figure]:
    """How PS-KD rescales the gradient, and how many samples meet the condition."""
    measured = {row.short: line for row in frame.rows if (line := measure_rescaling(row)) is not None}
    lines = {label: line for label, line in measured.items() if np.isfinite(line.median).sum() > 1}
    if not lines:
        return

    def draw_factor(axes: Any) -> None:
        for label, line in lines.items():
            style = frame.palette.line(label)
            axes.plot(line.epochs, line.median, label=label, **style)
            axes.fill_between(line.epochs, line.lower, line.upper, color=style["color"], alpha=0.15, lw=0)
        axes.set(ylabel="gradient rescaling factor", ylim=(0, 1.02))
        label_epochs(axes)

    def draw_share(axes: Any) -> None:
        for label, line in lines.items():
            axes.plot(line.epochs, 100 * line.share, label=label, **frame.palette.line(label))
        axes.set(ylabel="samples that meet the condition (%)", ylim=(0, 102))
        label_epochs(axes)

    last = ", ".join(f"{label} {line.median[-1]:.2f}" for label, line in lines.items())
    share = ", ".join(f"{label} {line.share[-1]:.0%}" for label, line in lines.items())
    yield Figure(
        "rescaling",
        f"rescaling{frame.suffix}",
        frame.title("Gradient rescaling"),
        f"The factor of the gradient, median over samples. In the last epoch: {last}.",
        draw_factor,
        caption="1 - alpha * gamma(t-1) / gamma(t) of the samples that meet its condition. Line: median; band: the"
        " middle half.",
        flat=_are_flat(part for line in lines.values() for part in (line.lower, line.upper)),
    )
    yield Figure(
        "rescaling",
        f"rescaling-share{frame.suffix}",
        frame.title("Where the rescaling holds"),
        f"The share of samples that are rescaled. In the last epoch: {share}.",
        draw_share,
        caption="The condition: alpha is at most p(t) / p(t-1) for all other classes.",
        flat=_are_flat(line.share for line in lines.values()),
    )


def measure_rescaling(row: Row) -> Rescaling | None:
    """``1 - alpha_t * gamma_past / gamma_t`` of a row's first seed; None if it recorded no alpha_t, or no samples.

    gamma_past is of the past prediction that the method used. The first format of the record does not have it: there
    the prediction of the epoch before is taken. That is right only for a bank, which keeps the training's predictions.
    """
    run = row.runs[0]
    history = run.history
    alphas = {record["epoch"]: record["alpha_t"] for record in run.epochs if "alpha_t" in record}
    if history is None or history.num_epochs < 2 or len(alphas) < history.num_epochs:
        return None
    first_format = history.version == 0
    if first_format and getattr(run.config.method, "memory", None) != "bank":
        return None
    epochs = 1 + _spread_out(history.num_epochs - 1, RESCALED_EPOCHS)
    quartiles, shares = [], []
    for epoch in epochs.tolist():
        factors, known, rescaled = [], 0, 0
        for start in range(0, history.num_samples, PART):
            pair = history.of([epoch - 1, epoch], slice(start, start + PART))
            now, past = pair.wrong[1], pair.wrong[0] if first_format else pair.past_wrong[1]
            both = ~np.isnan(past) & ~np.isnan(now)
            met = both & pair.rescaled[1]
            known, rescaled = known + int(both.sum()), rescaled + int(met.sum())
            use = met & (now > 0)
            # Where the condition is met, only rounding makes the factor negative.
            factors.append(np.maximum(0, 1 - alphas[epoch + 1] * past[use] / now[use]))
        factor = np.concatenate(factors)
        shares.append(rescaled / known if known else np.nan)
        quartiles.append(np.percentile(factor, (25, 50, 75)) if len(factor) else [np.nan] * 3)
    lower, median, upper = np.array(quartiles).T
    return Rescaling(epochs + 1, lower, median, upper, np.array(shares))


def _spread_out(count: int, most: int) -> np.ndarray:
    """At most ``most`` of the numbers below ``count``, evenly spread, with the first and the last one."""
    return np.unique(np.linspace(0, count - 1, min(most, count)).astype(int))


def _data_of(run: FinishedRun) -> tuple[int, str]:
    """What must be equal for a sample's number to mean the same sample."""
    return run.seed, run.result["data_fingerprint"]


def _mean(values: np.ndarray) -> np.ndarray:
    """The mean over samples by epoch; NaN for an epoch in which all samples were mixed."""
    count = (~np.isnan(values)).sum(1)
    return np.where(count > 0, np.nansum(values, 1) / np.maximum(1, count), np.nan)


def _are_flat(lines: Iterable[np.ndarray]) -> bool:
    """Whether lines on an axis from 0 to 1 are straight, and on top of each other."""
    everything = np.concatenate([line[np.isfinite(line)] for line in lines])
    return len(everything) == 0 or float(np.ptp(everything)) < FLAT
