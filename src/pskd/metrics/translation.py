"""BLEU and chrF of translations, by sacrebleu."""

from __future__ import annotations

from collections.abc import Sequence


def score_translations(found: Sequence[str], references: Sequence[str]) -> tuple[dict[str, float], dict[str, str]]:
    """Corpus scores, 0 to 100, and sacrebleu's signature of each: how it was computed."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    metrics = {"bleu": BLEU(), "bleu_lower": BLEU(lowercase=True), "chrf": CHRF()}
    scores = {name: float(metric.corpus_score(found, [references]).score) for name, metric in metrics.items()}
    return scores, {name: str(metric.get_signature()) for name, metric in metrics.items()}
