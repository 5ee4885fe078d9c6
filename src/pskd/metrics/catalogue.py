"""Every metric that a result can hold: how it is written, which way is better, and where it is shown.

Tables and result lines show all metrics that a result has. The catalogue is open: a name that is not in it is a metric
too, and ``METRICS["mine"] = Metric("My score", higher_is_better=True)`` says more about it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

FACTORS = {"": 1.0, "%": 100.0, "x1000": 1000.0}  # what a fraction is multiplied by to be in a unit
# Numbers of a result that say something of the run, not how good it is.
ABOUT_THE_RUN = frozenset({"epoch", "seed", "ece_bins", "num_classes", "training_samples", "parameters", "processes"})


class Metric(NamedTuple):
    """What is to be known of one metric.

    Args:
        title: its name for people.
        unit: a key of ``FACTORS``.
        form: how its value in that unit is written.
        higher_is_better: None if that is not known: no value is then called the best.
        line: how the line of an epoch says it; None if it does not.
        curve: whether it is drawn over the epochs.
        in_paper: whether it is a column of the paper's tables.
        primary: whether it is the one number of its task, by which runs are compared where only one can be.
    """

    title: str
    unit: str = ""
    form: str = "{:.4g}"
    higher_is_better: bool | None = None
    line: str | None = None
    curve: bool = True
    in_paper: bool = False
    primary: bool = False

    @property
    def heading(self) -> str:
        """`ECE (%)`"""
        return f"{self.title} ({self.unit})" if self.unit else self.title

    def text(self, value: float) -> str:
        return self.form.format(value)

    def cost(self, value: float) -> float:
        """A number that is lower where the metric is better."""
        return -value if self.higher_is_better else value

    def better(self, one: float, other: float) -> bool:
        return self.cost(one) < self.cost(other)

    def best(self, values: Iterable[float]) -> float | None:
        """The best of some values; None if there is none, or if it is not known which way is better."""
        return None if self.higher_is_better is None else min(values, key=self.cost, default=None)


class Catalogue(dict[str, Metric]):
    """Metrics by name; one that is not there is known by its name alone."""

    def __missing__(self, name: str) -> Metric:
        return Metric(name, line=name.replace("{", "{{").replace("}", "}}") + " {:.4g}")


METRICS = Catalogue(
    bleu=Metric("BLEU", "", "{:.2f}", True, "BLEU {:.2f}", in_paper=True, primary=True),
    bleu_lower=Metric("BLEU, lower case", "", "{:.2f}", True, curve=False),
    chrf=Metric("chrF", "", "{:.2f}", True, curve=False),
    top1_error=Metric("Top-1 err", "%", "{:.2f}", False, "top-1 error {:.2f}%", in_paper=True, primary=True),
    top5_error=Metric("Top-5 err", "%", "{:.2f}", False, curve=False, in_paper=True),
    nll=Metric("NLL", "", "{:.4f}", False, "NLL {:.3f}", in_paper=True),
    ece=Metric("ECE", "%", "{:.2f}", False, "ECE {:.2f}%", in_paper=True),
    aurc=Metric("AURC", "x1000", "{:.2f}", False, "AURC {:.2f}", in_paper=True),
    e_aurc=Metric("E-AURC", "x1000", "{:.2f}", False, curve=False),
    brier=Metric("Brier", "", "{:.4f}", False, curve=False),
    coverage_at_1=Metric("Coverage at 1% error", "%", "{:.2f}", True, curve=False),
    coverage_at_5=Metric("... at 5% error", "%", "{:.2f}", True, curve=False),
    coverage_at_10=Metric("... at 10% error", "%", "{:.2f}", True, curve=False),
    map50=Metric("mAP at IoU 0.5", "", "{:.4f}", True, "mAP@0.5 {:.3f}", in_paper=True, primary=True),
    map50_11point=Metric("... 11-point", "", "{:.4f}", True, curve=False),
    coco_ap=Metric("COCO AP", "", "{:.4f}", True, "COCO AP {:.3f}"),
    coco_ap50=Metric("COCO AP50", "", "{:.4f}", True, curve=False),
    coco_ap75=Metric("COCO AP75", "", "{:.4f}", True, curve=False),
)


def metrics_of(result: Mapping[str, Any]) -> list[str]:
    """The names of the metrics in a result: those of the catalogue in its order, then others in theirs."""
    numbers = [name for name, value in result.items() if is_number(value) and name not in ABOUT_THE_RUN]
    return [name for name in METRICS if name in numbers] + [name for name in numbers if name not in METRICS]


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def paper_columns(result: Mapping[str, Any]) -> list[str]:
    """The metrics of a result that the paper's tables have."""
    return [name for name in metrics_of(result) if METRICS[name].in_paper]


def primary(result: Mapping[str, Any]) -> str | None:
    """The one metric of a result that stands for it; None for a task of which none is marked."""
    return next((name for name in result if METRICS[name].primary), None)
