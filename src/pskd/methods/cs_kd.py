"""Class-wise self-knowledge distillation: samples of one class teach each other."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from pskd.door import Batch
from pskd.errors import PskdError
from pskd.linear_head import Output
from pskd.methods.base import Loss, Method
from pskd.methods.card import Card
from pskd.methods.distilling import check_given, softened_divergence, with_term
from pskd.random import uniform
from pskd.settings import NotNegative, Positive
from pskd.targets import Targets

TEMPERATURE = 4.0  # the paper's


@dataclass(eq=False, repr=False)
class CSKD(Method):
    """``L = H(y, p(x)) + lam * T^2 * KL(p_T(x') || p_T(x))``, x' another sample of x's class, p_T softened by T.

    Args:
        temperature: T. The paper: 4.
        lam: lambda, at least 0. The paper: 1 on CIFAR-100, 0.5 on ImageNet.

    ``partner_logits`` are the model's own for x', from a forward pass of its own in training mode under
    ``torch.no_grad()``; ``SameClassPartners`` chooses x'::

        partners = SameClassPartners(train_labels, seed=0)
        method = CSKD()
        for x, y, index in loader:
            logits = model(x)
            with torch.no_grad():
                partner_logits = model(train_images[partners(index, epoch)])
            loss = method(logits, y, partner_logits=partner_logits)

    The authors' code: alinlab/cs-kd. It draws x' from all samples of the class, so a sample may be its own partner;
    here, as in the paper's text, it is another one, unless its class has no other. Constants: T 4, lambda 1 on
    CIFAR-100, 3 on CUB-200.

    A mixed label has no class, so mixed samples are not distilled: where ``distilled`` is false, only ``H(y, p)``
    counts, and ``partner_logits`` may be any finite numbers.

    Cost: one more forward pass without gradient and one more batch of data per step; nothing is kept. Use it where
    classes are broad or fine-grained and have many samples each; it draws samples of one class together.

    Reference: Yun, Park, Lee, Shin: Regularizing Class-wise Predictions via Self-knowledge Distillation, CVPR 2020.
    """

    name = "cs_kd"
    card = Card("CS-KD", shares_mix=True)
    takes_weight = True
    needs = frozenset({"partner_logits"})

    temperature: Positive = TEMPERATURE
    lam: NotNegative = 1.0

    def loss(
        self,
        output: Output,
        targets: Targets,
        *,
        partner_logits: Tensor | None = None,
        distilled: Tensor | None = None,
    ) -> Loss:
        batch = self.door(output, targets, distilled)
        return self.reduced(
            batch, with_term(batch, self.lam * partner_divergence(batch, partner_logits, self.temperature))
        )


def partner_divergence(batch: Batch, partner_logits: Tensor | None, temperature: float) -> Tensor:
    """``T^2 * KL(p_T(x') || p_T(x))`` of every position, (n)."""
    given = check_given("partner_logits", partner_logits, batch, "the logits of same-class samples")
    return temperature**2 * softened_divergence(batch.logits, given, temperature)


def partner_term(batch: Batch, partner_logits: Tensor | None) -> Tensor:
    """The divergence at the paper's temperature, as it counts in a loss, (n)."""
    return batch.counted(partner_divergence(batch, partner_logits, TEMPERATURE))


class SameClassPartners:
    """For every training sample another one of its class, drawn anew in each epoch, each with the same probability.

    A partner is a pure function of (seed, epoch, sample): all processes agree without a word, and a resumed run draws
    the same ones. A sample whose class has no other is its own partner; that is warned of once, here.

    Args:
        labels: (N) class indices of the whole training set, in the order that ``index`` counts in.
        seed: of the run.
    """

    def __init__(self, labels: Tensor, seed: int = 0) -> None:
        labels = torch.as_tensor(labels)
        if labels.ndim != 1 or labels.is_floating_point():
            raise PskdError(f"labels must be class indices (N), got {labels.dtype} {tuple(labels.shape)}")
        classes, class_of, counts = torch.unique(labels, return_inverse=True, return_counts=True)
        alone = classes[counts == 1]
        if len(alone):
            warnings.warn(
                f"CS-KD: {len(alone)} of {len(classes)} classes have one training sample only (for example class"
                f" {int(alone[0])}); such a sample is its own partner",
                stacklevel=2,
            )
        self.seed = seed
        self._by_class: Tensor = class_of.argsort(stable=True)  # (N) the samples, class after class
        self._start = (counts.cumsum(0) - counts)[class_of]  # (N) where a sample's class begins in that order
        self._count = counts[class_of]  # (N) how many samples its class has
        self._rank = torch.empty_like(class_of)  # (N) its place inside its class
        self._rank[self._by_class] = torch.arange(len(labels), device=labels.device) - self._start[self._by_class]

    def __call__(self, index: Tensor, epoch: int) -> Tensor:
        """The partners' indices (B) of the training samples ``index`` (B) in this epoch, on ``index``'s device."""
        own = index.to(self._rank.device)
        if own.device.type == "cpu" and ((own < 0) | (own >= len(self._rank))).any():
            raise PskdError(
                f"index: {int(own.min())}..{int(own.max())} is not inside 0..{len(self._rank) - 1}, the samples whose"
                " labels were given"
            )
        number = uniform(own, seed=self.seed, epoch=epoch, stream="partner").squeeze(1).double()
        count = self._count[own]
        # 1 to count - 1 places further on in the class, which is never the sample itself; alone, it is 0 places.
        further = 1 + (number * (count - 1)).long()
        return self._by_class[self._start[own] + (self._rank[own] + further) % count].to(index.device)
