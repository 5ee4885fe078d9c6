"""Correctness ranking: who was right more often shall be surer."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from pskd.door import check_trains
from pskd.errors import PskdError
from pskd.linear_head import Output
from pskd.memory.bank import PredictionBank
from pskd.methods.base import Loss, Method
from pskd.methods.card import Card
from pskd.methods.distilling import likelihood, with_term
from pskd.settings import Count, NotNegative
from pskd.targets import Targets


@dataclass(eq=False, repr=False)
class CRL(Method):
    """``L = H(y, p) + lam * max(0, abs(c_i - c_j) - sign(c_i - c_j) * (k_i - k_j))``, j the next sample of the batch.

    k is the largest probability of a sample, c the share of the epochs before in which it was classified right: a whole
    number of epochs divided by another, so samples that were right equally often have the same c, and are not ranked.

    Args:
        epochs: the length of the training.
        lam: at least 0. The authors' code, on CIFAR-10, CIFAR-100 and SVHN: 1.
        memory: a bank of 3 classes, for the epochs in which a sample was right, was wrong, and those that are left:
            ``PredictionBank(N, 3, dtype=torch.float32, max_age=None)``; call with ``index=``.

    Only plain samples are ranked: the term is 0 where ``distilled`` is false for either of a pair, and for mixed
    labels without it. An epoch in which a sample was left out counts neither as right nor as wrong, and a sample that
    was in none yet is not ranked.

    The authors' code: daintlab/confidence-aware-learning. It subtracts the smallest c of all samples, and divides by
    what is left of 1; here c is as the paper defines it, which is the same while one sample was never right.

    Cost: three numbers per sample, no forward pass. Use it where predictions shall be rejected by their confidence.

    Reference: Moon, Kim, Shin, Hwang: Confidence-Aware Learning for Deep Neural Networks, ICML 2020.
    """

    name = "crl"
    card = Card(
        "CRL",
        shares_mix=True,
        memory={"form": "dense", "k": 3, "dtype": "float32", "num_classes": 3, "max_age": None, "path": None},
    )
    takes_weight = True

    epochs: Count
    lam: NotNegative = 1.0
    memory: PredictionBank = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.memory.num_classes != 3:
            raise PskdError(f"memory has {self.memory.num_classes} classes, but CRL counts in 3: PredictionBank(N, 3)")

    def loss(
        self, output: Output, targets: Targets, *, index: Tensor | None = None, distilled: Tensor | None = None
    ) -> Loss:
        check_trains(output)
        key, _ = self.memory.key(index=index), self.epoch
        batch = self.door(output, targets, distilled)
        term, labels = torch.zeros_like(batch.log_p[:, 0]), batch.own_labels
        if labels is None:
            return self.reduced(batch, with_term(batch, term, "ranking"))
        right = batch.log_p.argmax(1) == labels
        now = torch.stack((right, ~right, torch.zeros_like(right)), 1).to(batch.log_p)
        counted = batch._replace(logits=now, labels=None)
        past = self.memory.read(key, counted)
        # Whole numbers of epochs; of a sample without a record, all are 0.
        counts = (self.epochs * past.probabilities(3) * past.trust(1.0)[:, None]).round().to(now)
        seen = counts[:, :2].sum(1)
        term = self.lam * ranking(likelihood(batch.logits).amax(1), counts[:, 0] / seen.clamp_min(1), seen > 0)
        counts += now
        counts[:, 2] = (self.epochs - 1 - seen).clamp_min(0)
        self.memory.write(key, counted, counts.log(), past)
        return self.reduced(batch, with_term(batch, term, "ranking"))


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
