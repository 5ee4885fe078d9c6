"""Mean teacher: predictions are drawn to those of a copy of the model that follows it."""

from __future__ import annotations

from dataclasses import dataclass, field

from pskd.memory.snapshot import Snapshot
from pskd.methods.card import Card
from pskd.methods.consistency import Consistency
from pskd.settings import Count, NotNegative, Share


@dataclass(eq=False, repr=False)
class MeanTeacher(Consistency):
    """``L = H(y, p) + w_t * mean_j (p_j - q_j)^2``; q is predicted by the exponential mean of the model's weights.

    ``w_t = lam * exp(-5 (1 - t / rampup)^2)`` up to ``rampup``.

    Args:
        epochs: the length of the training.
        lam: w_t in the end. The authors' code: 100.
        rampup: the part of the training in which w_t grows. The authors' code: 5 of 300 epochs.
        memory: ``Snapshot(model, ema=...)``, called with ``inputs=``.

    The copy predicts in evaluation mode and sees the same, also mixed, images; the authors' one sees another view of
    them in training mode. Where ``distilled`` is false, only ``H(y, p)`` counts.

    Cost: one forward pass without gradient per step, and one more copy of the weights. Use it where a bank cannot be
    kept, and where predictions that are steady from step to step are worth a forward pass.

    Reference: Tarvainen, Valpola: Mean Teachers Are Better Role Models, NeurIPS 2017.
    """

    name = "mean_teacher"
    card = Card("mean teacher", logs=("lam_t",), defaults={"ema": 0.99})

    epochs: Count
    lam: NotNegative = 100.0
    rampup: Share = 5 / 300
    memory: Snapshot = field(kw_only=True)
