"""Class-wise self-knowledge distillation: samples of one class teach each other."""

from __future__ import annotations

import warnings
from typing import Any, Self

import torch
from torch import Tensor

from pskd.errors import PskdError
from pskd.linear_head import Output
from pskd.methods.base import ClassWeight, Loss, Method, Surroundings, whole_logits
from pskd.methods.distilling import check_given, softened_divergence, where_distilled, with_term
from pskd.names import methods
from pskd.random import uniform
from pskd.settings import NotNegative, Positive, check_arguments
from pskd.targets import Reduction, Targets

TEMPERATURE = 4.0  # the paper's


@methods.register("cs_kd")
class CSKD(Method):
    """``L = H(y, p(x)) + lam * T^2 * KL(p_T(x') || p_T(x))``, x' another sample of x's class, p_T softened by T.

    Args:
        temperature: T. The paper: 4.
        lam: lambda, at least 0 (in a configuration ``method.weight``). The paper: 1 on CIFAR-100, 0.5 on ImageNet.

    ``partner_logits`` are the model's own for x', from a forward pass of its own in training mode under
    ``torch.no_grad()``; ``SameClassPartners`` chooses x'::

        partners = SameClassPartners(train_labels, seed=0)
        method = CSKD()
        for x, y, index in loader:
            logits = model(x)
            with torch.no_grad():
                partner_logits = model(train_images[partners(index, epoch)])
            loss = method(logits, y, partner_logits=partner_logits)

    A mixed label has no class, so mixed samples are not distilled: where ``distilled`` is false, only ``H(y, p)``
    counts, and ``partner_logits`` may be any finite numbers.

    Cost: one more forward pass without gradient and one more batch of data per step; nothing is kept. Use it where
    classes are broad or fine-grained and have many samples each; it draws samples of one class together.

    Reference: Yun, Park, Lee, Shin: Regularizing Class-wise Predictions via Self-knowledge Distillation, CVPR 2020.
    """

    name = "cs_kd"
    title = "CS-KD"
    shares_mix = True
    takes_weight = True
    python_only = ("lam",)  # which is `weight` there
    needs = frozenset({"partner_logits"})

    def __init__(
        self,
        temperature: Positive = TEMPERATURE,
        lam: NotNegative = 1.0,
        *,
        reduction: Reduction = "mean",
        weight: ClassWeight = None,
    ) -> None:
        super().__init__(reduction=reduction, weight=weight)
        check_arguments(CSKD.__init__, locals())
        self.temperature, self.lam = temperature, lam

    @classmethod
    def from_settings(cls, around: Surroundings, *, weight: NotNegative = 1.0, **settings: Any) -> Self:
        """With lambda as a configuration calls it.

        Args:
            weight: lambda, at least 0. The paper: 1 on CIFAR-100, 0.5 on ImageNet.
        """
        check_arguments(cls.from_settings, locals())
        return super().from_settings(around, lam=weight, **settings)

    def loss(
        self,
        output: Output,
        targets: Targets,
        *,
        partner_logits: Tensor | None = None,
        distilled: Tensor | None = None,
    ) -> Loss:
        logits = whole_logits(output)
        divergence = partner_divergence(logits, partner_logits, self.temperature, distilled)
        return with_term(self, logits, targets, self.lam * divergence, None)


def partner_divergence(
    logits: Tensor, partner_logits: Tensor | None, temperature: float, distilled: Tensor | None
) -> Tensor:
    """``T^2 * KL(p_T(x') || p_T(x))`` of every position, (B, d1, ...); 0 where ``distilled`` is false."""
    partner_logits = check_given("partner_logits", partner_logits, logits, "the logits of same-class samples")
    divergence = softened_divergence(logits, partner_logits, temperature)
    return where_distilled(temperature**2, distilled, logits) * divergence


def cs_kd_loss(
    logits: Tensor, labels: Tensor, partner_logits: Tensor, temperature: float = 4.0, lam: float = 1.0
) -> Tensor:
    """CS-KD as the paper has it: logits and those of same-class samples (B, K), class indices (B)."""
    log_p = logits.log_softmax(1)
    log_p_t = (logits / temperature).log_softmax(1)
    partner_t = (partner_logits.detach() / temperature).softmax(1)
    cross_entropy = -log_p.gather(1, labels[:, None])[:, 0]
    divergence = (partner_t * (partner_t.log() - log_p_t)).sum(1)
    return (cross_entropy + lam * temperature**2 * divergence).mean()


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
