"""Zipf's label smoothing: the other classes share by their rank, as words of a language do."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pskd.errors import PskdError
from pskd.linear_head import Output
from pskd.methods.base import Loss, Method
from pskd.methods.card import Card
from pskd.methods.distilling import with_term
from pskd.settings import NotNegative
from pskd.targets import Targets
from pskd.tensors import accumulation_dtype


@dataclass(eq=False, repr=False)
class ZipfLS(Method):
    """``L = H(y, p) + lam * KL(zipf || p without y)``; zipf gives the class of rank r, by its logit, ``(1/r) / sum``.

    This is the part of the method that ranks by logits; the votes of feature maps, which its authors add, are not here.
    Ranks are counted among the other classes, 1 to K - 1; the authors' training code counts the label too, so that the
    first of the others is second where the label leads.

    Args:
        lam: lambda, at least 0. The authors' code: 0.1 on CIFAR-100 and ImageNet, 1 on Tiny ImageNet and iNaturalist.

    p without y is the softmax over the K - 1 other classes. Each label of a mixed pair has its divergence, and they are
    mixed. Where ``distilled`` is false, only ``H(y, p)`` counts.

    Cost: the classes are sorted by their logits; no forward pass, no memory. Use it instead of label smoothing where
    classes are many.

    Reference: Liang, Li, Bing, Zhao, Tang, Lin, Fan: Efficient One Pass Self-Distillation with Zipf's Label Smoothing,
    ECCV 2022.
    """

    name = "zipf_ls"
    card = Card("Zipf label smoothing")
    takes_weight = True

    lam: NotNegative = 0.1

    def loss(self, output: Output, targets: Targets, *, distilled: Tensor | None = None) -> Loss:
        batch = self.door(output, targets, distilled)
        target, num_classes = batch.target, batch.logits.shape[1]
        if target.classes is None or target.coefficients is None:
            raise PskdError("targets: Zipf's label smoothing needs class indices or mixed pairs, not probabilities")
        if num_classes < 2:
            raise PskdError(f"Zipf's label smoothing needs 2 classes or more, but logits have {num_classes}")
        each = [zipf_divergence(batch.logits, labels, batch.masked) for labels in target.classes.unbind(1)]
        portions = target.coefficients / target.coefficients.sum(1, keepdim=True).clamp_min(1e-12)
        return self.reduced(batch, with_term(batch, self.lam * (torch.stack(each, 1) * portions).sum(1)))


def zipf_divergence(logits: Tensor, labels: Tensor, masked: bool = True) -> Tensor:
    """``KL(zipf || p without the label)`` of logits (n, K), (n).

    Masked classes, with logits of -inf, come last in rank, and their terms are left out; ``masked`` false says that
    there is none.
    """
    others = logits.to(accumulation_dtype(logits.dtype)).scatter(1, labels[:, None], -math.inf)
    sorted_log_p = others.log_softmax(1).sort(1, descending=True).values[:, :-1]  # the label comes last
    shares = 1 / torch.arange(1, logits.shape[1], dtype=sorted_log_p.dtype, device=logits.device)
    shares = shares / shares.sum()
    if not masked:
        return (shares * (shares.log() - sorted_log_p)).sum(1)
    left_out = sorted_log_p == -math.inf
    return (shares * (shares.log() - sorted_log_p.masked_fill(left_out, 0))).masked_fill(left_out, 0).sum(1)
