"""Early-learning regularisation: what was learnt before the wrong labels were is held on to."""

from __future__ import annotations

from typing import Annotated

from torch import Tensor

from pskd.linear_head import Output
from pskd.memory.bank import PredictionBank
from pskd.methods.base import ClassWeight, Loss, whole_logits
from pskd.methods.distilling import likelihood, own_labels, with_term
from pskd.methods.remembering import Banked, taken, unbiased_momentum
from pskd.names import methods
from pskd.settings import Count, NotNegative, Range, check_arguments
from pskd.targets import Reduction, Targets

LEAST = 1e-4  # the authors' code keeps probabilities in [1e-4, 1 - 1e-4]


@methods.register("elr")
class ELR(Banked):
    """``L = H(y, p) + lam * log(1 - <t, p>)``, ``t <- beta * t + (1 - beta) * p``; t starts as 0.

    Args:
        epochs: the length of the training.
        beta: in [0, 1). The authors' code: 0.7 on CIFAR-10, 0.9 on CIFAR-100.
        lam: lambda, at least 0. The authors' code: 3 on CIFAR-10, 7 on CIFAR-100.
        memory: where t is kept; call with ``index=``.

    As in the authors' code, p in both places is kept in [1e-4, 1 - 1e-4]. A bank's rows have a mass of 1, so the row is
    ``t / (1 - beta^n)`` in the nth epoch, the mean without the zeros that t starts from.
    Where ``distilled`` is false, only ``H(y, p)`` counts, and t stays.

    Cost: one row per sample, no forward pass. Use it where labels are wrong; look at lambda first, where they are not.

    Reference: Liu, Niles-Weed, Razavian, Fernandez-Granda: Early-Learning Regularization Prevents Memorization of Noisy
    Labels, NeurIPS 2020.
    """

    name = "elr"
    title = "ELR"

    def __init__(
        self,
        epochs: Count,
        beta: Annotated[float, Range(ge=0, lt=1)] = 0.7,
        lam: NotNegative = 3.0,
        *,
        memory: PredictionBank,
        reduction: Reduction = "mean",
        weight: ClassWeight = None,
    ) -> None:
        check_arguments(ELR.__init__, locals())
        super().__init__(epochs, memory, reduction=reduction, weight=weight)
        self.beta, self.lam = beta, lam

    def loss(
        self, output: Output, targets: Targets, *, index: Tensor | None = None, distilled: Tensor | None = None
    ) -> Loss:
        logits, seen = whole_logits(output), self.epoch + 1
        step = self.step(logits, index)
        step.check(None, logits)
        labels = own_labels(targets, None)
        take = taken(logits, labels, distilled)
        past = step.past(None, labels=labels, take=take)
        assert past is not None
        p = likelihood(logits).clamp(LEAST, 1 - LEAST)
        now = p.detach() / p.detach().sum(1, keepdim=True)
        mean = past.to(logits.device).averaged_with(now, unbiased_momentum(self.beta, seen))
        step.record(None, mean.log(), labels=labels, take=take)
        t = (1 - self.beta**seen) * mean
        return with_term(self, logits, targets, self.lam * (1 - (t * p).sum(1)).log(), distilled, "regularisation")
