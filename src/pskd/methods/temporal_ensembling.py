"""Temporal ensembling: predictions are drawn to the running mean of those in the epochs before."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from torch import Tensor

from pskd.door import Batch
from pskd.memory.bank import PredictionBank
from pskd.methods.card import Card
from pskd.methods.consistency import Consistency
from pskd.methods.distilling import unbiased_momentum
from pskd.settings import Count, NotNegative, Range, Share
from pskd.targets import Past


@dataclass(eq=False, repr=False)
class TemporalEnsembling(Consistency):
    """``L = H(y, p) + w_t * mean_j (p_j - q_j)^2``; q is the mean of the sample's predictions in the epochs before.

    ``w_t = lam * exp(-5 (1 - t / rampup)^2)`` up to ``rampup``; the mean is ``Z / (1 - momentum^n)`` after n epochs,
    ``Z <- momentum * Z + (1 - momentum) * p``.

    Args:
        epochs: the length of the training.
        momentum: in [0, 1). The paper: 0.6.
        lam: w_t in the end. The authors' code: 100, times the part of the samples that is labelled.
        rampup: the part of the training in which w_t grows. The authors' code: 80 of 300 epochs.
        memory: the bank where the mean is kept; call with ``index=``.

    In the first epoch there is no mean, and only ``H(y, p)`` counts, as it does where ``distilled`` is false.

    Cost: one record per sample, no forward pass. Use it where the label shall keep its full weight.

    Reference: Laine, Aila: Temporal Ensembling for Semi-Supervised Learning, ICLR 2017.
    """

    name = "temporal_ensembling"
    card = Card("temporal ensembling", shares_mix=True, logs=("lam_t",), memory={"max_age": None})

    epochs: Count
    momentum: Annotated[float, Range(ge=0, lt=1)] = 0.6
    lam: NotNegative = 100.0
    rampup: Share = 80 / 300
    memory: PredictionBank = field(kw_only=True)

    def recorded(self, batch: Batch, past: Past | None) -> Tensor:
        momentum = unbiased_momentum(self.momentum, self.epoch + 1)
        return batch.log_p if past is None else past.averaged_with(batch.log_p.exp(), momentum).log()
