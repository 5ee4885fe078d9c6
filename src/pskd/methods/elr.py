"""Early-learning regularisation: what was learnt before the wrong labels were is held on to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from torch import Tensor

from pskd.door import check_trains
from pskd.linear_head import Output
from pskd.memory.bank import PredictionBank
from pskd.methods.base import Loss, Method
from pskd.methods.card import Card
from pskd.methods.distilling import likelihood, unbiased_momentum, with_term
from pskd.settings import Count, NotNegative, Range
from pskd.targets import Targets

LEAST = 1e-4  # the authors' code keeps probabilities in [1e-4, 1 - 1e-4]


@dataclass(eq=False, repr=False)
class ELR(Method):
    """``L = H(y, p) + lam * log(1 - <t, p>)``, ``t <- beta * t + (1 - beta) * p``; t starts as 0.

    Args:
        epochs: the length of the training.
        beta: in [0, 1).
        lam: lambda, at least 0.
        memory: where t is kept; call with ``index=``.

    The authors' code: shengliu66/ELR. Constants belong to the data:
        - CIFAR-10: beta 0.7, lambda 3, which are the defaults; with asymmetric noise beta 0.9, lambda 1.
        - CIFAR-100: beta 0.9, lambda 7.
        - Clothing1M, WebVision (with their ELR+): beta 0.7, lambda 3.

    As in that code, p in both places is kept in [1e-4, 1 - 1e-4]. A bank's records have a mass of 1, so the record is
    ``t / (1 - beta^n)`` in the nth epoch, the mean without the zeros that t starts from.
    Where ``distilled`` is false, only ``H(y, p)`` counts, and the record stays; n counts those epochs, too.

    Cost: one record per sample, no forward pass. Use it where labels are wrong; where they are right,
    look at lambda first.

    Reference: Liu, Niles-Weed, Razavian, Fernandez-Granda: Early-Learning Regularization Prevents Memorization of Noisy
    Labels, NeurIPS 2020.
    """

    name = "elr"
    card = Card("ELR", shares_mix=True, memory={"max_age": None})
    takes_weight = True

    epochs: Count
    beta: Annotated[float, Range(ge=0, lt=1)] = 0.7
    lam: NotNegative = 3.0
    memory: PredictionBank = field(kw_only=True)

    def loss(
        self, output: Output, targets: Targets, *, index: Tensor | None = None, distilled: Tensor | None = None
    ) -> Loss:
        check_trains(output)
        key, seen = self.memory.key(index=index), self.epoch + 1

        batch = self.door(output, targets, distilled)
        past = self.memory.read(key, batch)
        p = likelihood(batch.logits).clamp(LEAST, 1 - LEAST)
        now = p.detach() / p.detach().sum(1, keepdim=True)
        mean = past.averaged_with(now, unbiased_momentum(self.beta, seen))
        self.memory.write(key, batch, mean.log(), past)
        t = (1 - self.beta**seen) * mean
        return self.reduced(batch, with_term(batch, self.lam * (1 - (t * p).sum(1)).log(), "regularisation"))
