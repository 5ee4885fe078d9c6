"""Every metric that a result can hold: how it is written, and which way is better."""

from __future__ import annotations

from typing import NamedTuple


class Metric(NamedTuple):
    """``form`` formats the value in the paper's units; ``line`` is how an epoch's line says it, if it does."""

    title: str
    form: str
    line: str | None = None
    higher_is_better: bool = False

    def better(self, one: float, other: float) -> bool:
        return one > other if self.higher_is_better else one < other


METRICS = {
    "bleu": Metric("BLEU", "{:.2f}", "BLEU {:.2f}", higher_is_better=True),
    "bleu_lower": Metric("BLEU, lower case", "{:.2f}", higher_is_better=True),
    "chrf": Metric("chrF", "{:.2f}", higher_is_better=True),
    "top1_error": Metric("Top-1 err (%)", "{:.2f}", "top-1 error {:.2f}%"),
    "top5_error": Metric("Top-5 err (%)", "{:.2f}"),
    "nll": Metric("NLL", "{:.4f}", "NLL {:.3f}"),
    "ece": Metric("ECE (%)", "{:.2f}", "ECE {:.2f}%"),
    "aurc": Metric("AURC (x1000)", "{:.2f}", "AURC {:.2f}"),
    "e_aurc": Metric("E-AURC (x1000)", "{:.2f}"),
    "map50": Metric("mAP at IoU 0.5", "{:.4f}", "mAP@0.5 {:.3f}", higher_is_better=True),
    "map50_11point": Metric("... 11-point", "{:.4f}", higher_is_better=True),
    "coco_ap": Metric("COCO AP", "{:.4f}", "COCO AP {:.3f}", higher_is_better=True),
    "coco_ap50": Metric("COCO AP50", "{:.4f}", higher_is_better=True),
    "coco_ap75": Metric("COCO AP75", "{:.4f}", higher_is_better=True),
}
