"""Be your own teacher: heads inside the network learn from its end, and help its first stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pskd.errors import PskdError
from pskd.linear_head import Output
from pskd.methods.base import Loss, Method
from pskd.methods.card import Card
from pskd.methods.distilling import check_given, softened_divergence
from pskd.settings import NotNegative, Positive, Share
from pskd.targets import Targets


@dataclass(eq=False, repr=False)
class BYOT(Method):
    """``L = H(y, p) + sum_h ((1 - alpha) H(y, p_h) + alpha T^2 KL(p_T || p_hT) + beta |f_h - f|^2)`` over heads h.

    p and f, the prediction and the features of the network's end, are fixed where they teach. Of the features, those
    count in which the head or the end is above 0.

    Args:
        temperature: T.
        alpha: in [0, 1].
        beta: at least 0.

    Constants, on CIFAR-100: a re-implementation, luanyunteng/pytorch-be-your-own-teacher, has T 3, alpha 0.1 and beta
    1e-6 of the sum over 128 samples, which is 1.28e-4 of their mean. The mask of the features is its; it has a factor
    1 - alpha on ``H(y, p)``, too. The authors' later code, ArchipLab-LinfengZhang/pytorch-self-distillation-final: T 3,
    alpha 0.3 without the factor T^2, and 0.03 of the unsquared distance of all features, after a further linear layer
    and not for the first head; there ``H(y, p)`` counts in full, as here.

    ``head_logits`` are those of the heads, ``head_features`` (B, D) theirs, and last the end's; all are made in the
    student's own forward pass, with gradient. On the command line the heads are put on a network of stages; they are in
    the checkpoints, but not in the saved model. Where ``distilled`` is false, heads learn the label alone.

    Cost: the heads, forward and backward. Use it where the network is deep, or shall also answer from its first stages.

    Reference: Zhang, Song, Gao, Chen, Bao, Ma: Be Your Own Teacher: Improve the Performance of Convolutional Neural
    Networks via Self Distillation, ICCV 2019.
    """

    name = "byot"
    card = Card("BYOT")
    takes_weight = True
    needs = frozenset({"head_logits", "head_features"})

    temperature: Positive = 3.0
    alpha: Share = 0.1
    beta: NotNegative = 1.28e-4

    def loss(
        self,
        output: Output,
        targets: Targets,
        *,
        head_logits: Sequence[Tensor] | None = None,
        head_features: Sequence[Tensor] | None = None,
        distilled: Tensor | None = None,
    ) -> Loss:
        if not head_logits:
            raise PskdError("head_logits is missing: call with head_logits=..., one (B, K) for each head")

        batch = self.door(output, targets, distilled)
        labelled, taught = batch.cross_entropy(batch.target), torch.zeros_like(batch.log_p[:, 0])
        alpha = batch.where_distilled(self.alpha)
        for place, head in enumerate(head_logits):
            own = check_given("head_logits", head, batch, "of each head")
            divergence = softened_divergence(own, batch.logits, self.temperature, batch.masked)
            taught = taught + self.alpha * self.temperature**2 * divergence
            labelled = labelled + (1 - alpha) * batch.of_logits(own).cross_entropy(batch.target)
            if self.beta and head_features is not None:
                feature, end = head_features[place], head_features[-1].detach()
                distance = ((feature - end).square() * ((feature > 0) | (end > 0))).sum(1)
                taught = taught + self.beta * distance
        return self.reduced(batch, {"cross_entropy": labelled, "distillation": batch.counted(taught)})
