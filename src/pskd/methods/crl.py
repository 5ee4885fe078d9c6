"""Correctness ranking: who was right more often shall be surer."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from pskd.linear_head import Output
from pskd.memory.bank import PredictionBank
from pskd.methods.base import ClassWeight, Loss, Surroundings, whole_logits
from pskd.methods.distilling import likelihood, own_labels, with_term
from pskd.methods.remembering import Remembering, bank_for, taken
from pskd.names import methods
from pskd.settings import Count, NotNegative, check_arguments
from pskd.targets import Reduction, Targets


@methods.register("crl")
class CRL(Remembering):
    """``L = H(y, p) + lam * max(0, abs(c_i - c_j) - sign(c_i - c_j) * (k_i - k_j))``, j the next sample of the batch.

    k is the largest probability of a sample, c the share of the epochs before in which it was classified right.

    Args:
        epochs: the length of the training.
        lam: at least 0. The paper: 1.
        memory: a bank of 2 classes, right and wrong, for c: ``PredictionBank(N, 2, dtype=torch.float32)``; call with
            ``index=``.

    Only plain samples are ranked: the term is 0 where ``distilled`` is false for either of a pair, and for mixed
    labels without it. The authors' code subtracts the smallest c of all samples, and divides by what is left of 1;
    here c is as the paper defines it.

    Cost: two numbers per sample, no forward pass. Use it where predictions shall be rejected by their confidence.

    Reference: Moon, Kim, Shin, Hwang: Confidence-Aware Learning for Deep Neural Networks, ICML 2020.
    """

    name = "crl"
    title = "CRL"
    shares_mix = True
    takes_weight = True
    memory: PredictionBank

    def __init__(
        self,
        epochs: Count,
        lam: NotNegative = 1.0,
        *,
        memory: PredictionBank,
        reduction: Reduction = "mean",
        weight: ClassWeight = None,
    ) -> None:
        check_arguments(CRL.__init__, locals())
        super().__init__(epochs, memory, reduction=reduction, weight=weight)
        self.lam = lam

    @classmethod
    def from_settings(cls, around: Surroundings, **settings: Any) -> Self:
        memory = bank_for(around, "dense", dtype="float32", num_classes=2, max_age=None)
        return super().from_settings(around, memory=memory, **settings)

    def begin(self, epoch: int, *, anew: bool) -> None:
        super().begin(epoch, anew=anew)
        self.memory.momentum = epoch / (epoch + 1)  # a plain mean over the epochs

    def loss(
        self, output: Output, targets: Targets, *, index: Tensor | None = None, distilled: Tensor | None = None
    ) -> Loss:
        logits, epoch = whole_logits(output), self.epoch
        step = self.step(logits, index, recalls=epoch > 0)
        labels = own_labels(targets, distilled)
        term = logits.sum(1) * 0
        if labels is not None:
            take = taken(logits, labels, distilled)
            right = logits.detach().argmax(1) == labels
            history = torch.stack((right, ~right), 1).to(logits.dtype)
            step.check(None, history)
            past = step.past(None, take=take)
            if past is not None:
                ranked = past.to(logits.device).known
                ranked = torch.ones_like(right) if ranked is None else ranked
                ranked = ranked if take is None else ranked & take.to(ranked.device)
                term = self.lam * ranking(likelihood(logits).amax(1), past.values[:, 0].to(logits.device), ranked)
            step.record(None, history.log(), take=take)
        return with_term(self, logits, targets, term, distilled, "ranking")


def ranking(sure: Tensor, right: Tensor, ranked: Tensor) -> Tensor:
    """``max(0, abs(c_i - c_j) - sign(c_i - c_j) * (k_i - k_j))`` of every position and the next; 0 where not ranked.

    Args:
        sure: k, (B, ...).
        right: c, (B, ...).
        ranked: whether a position takes part, (B, ...).
    """
    shape = ranked.shape
    sure, right, ranked = (part.flatten() for part in (sure, right.to(sure.dtype), ranked))
    ahead = right - right.roll(-1)
    hinge = (ahead.abs() - ahead.sign() * (sure - sure.roll(-1))).clamp_min(0)
    return (hinge * (ranked & ranked.roll(-1))).view(shape)
