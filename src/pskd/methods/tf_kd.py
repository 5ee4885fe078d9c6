"""Teacher-free knowledge distillation: the teacher is the same network trained before, or is made by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Literal

from torch import Tensor

from pskd.door import Batch
from pskd.errors import PskdError
from pskd.linear_head import Output
from pskd.methods.base import Loss, Method
from pskd.methods.card import Card
from pskd.methods.distilling import check_given, softened_divergence
from pskd.settings import Positive, Range, Share
from pskd.targets import Targets

# Variant, whether released -> temperature, alpha and a: of self, those of most models in the paper's tables; of reg,
# the authors' for ResNet-18 on CIFAR-100, and of its published equation, those of PS-KD's paper on ImageNet.
DEFAULTS = {("self", False): (20.0, 0.95, 0.99), ("reg", True): (20.0, 0.1, 0.99), ("reg", False): (40.0, 0.1, 0.95)}


@dataclass(eq=False, repr=False)
class TFKD(Method):
    """``L = (1 - alpha) * H(y, p) + alpha * multiplier * D``, with the divergence D from a teacher.

    The teacher, and D:
        - ``variant="self"``: the same architecture trained before with plain cross-entropy, in eval mode on the very
          same (also mixed) images; called with ``teacher_logits=``, no gradient needed. Both are softened by T,
          ``D = T^2 * KL(teacher_T || p_T)``, as in the authors' code; their equation has no T^2, which is
          ``multiplier = 1 / T**2``.
        - ``variant="reg"``: made by hand, the probabilities u: ``a`` at the label, ``(1 - a) / (K - 1)`` elsewhere.
          ``D = KL(softmax(u / T) || p)``, as in the authors' code: u is taken for logits, and the student is not
          softened. This teacher is almost uniform, so a label is smoothed by about ``alpha * multiplier``. Each label
          of a mixed pair has its teacher, and their divergences are mixed.
        - ``variant="reg", released=False``: the published equation, ``D = KL(u_T || p_T)``, both softened by T, where
          ``u_T = softmax(log(u) / T)``. Without T^2 it does next to nothing: for T = 40 and alpha = 0.1 its gradient is
          less than 0.0002 of cross-entropy's (random logits of 10 to 1000 classes), for T = 20 and alpha = 0.3 less
          than 0.002. It amounts to ``(1 - alpha) * H(y, p)``, a lower learning rate.

    Args:
        variant: "self" or "reg".
        temperature: T.
        alpha: in [0, 1].
        multiplier: a further factor. The authors' code takes the mean over samples *and classes* and multiplies it by
            m, which is ``multiplier = m / K`` here.
        a: for reg, in (1/K, 1).
        released: for reg, whether D is that of the authors' code; None: it is.

    The authors' code: yuanli2333/Teacher-free-Knowledge-Distillation. Constants:
        - self, on CIFAR-100: T 6, alpha 0.95, m 50 (multiplier 0.5) for ResNet-18; T 20, alpha 0.9 for DenseNet-121
          (m 50) and ResNeXt-29 (m 100, multiplier 1); T 20, alpha 0.95, m 1 for MobileNetV2 and ShuffleNetV2; T 20,
          alpha 0.4, m 50 for GoogLeNet. Without their values the settings have those of most models, and multiplier 1.
        - reg, on CIFAR-100: T 20, alpha 0.1, a 0.99, m 100 (multiplier 1) for ResNet-18, the defaults here. The others
          have a 0.99, too: T 40, alpha 0.1, m 50 for GoogLeNet; alpha 0.95, m 1, T 40 for MobileNetV2, 10 for
          ShuffleNetV2.
        - reg, on ImageNet, its loss was not released: T 40, alpha 0.1, a 0.95 in the paper of PS-KD, by the published
          equation; these are the defaults of ``released=False``.

    Where ``distilled`` is false, only ``H(y, p)`` counts, in full.

    Cost: self needs a finished training and one forward pass of the teacher per step; reg needs nothing, its teacher
    has two values per sample and is never built. Use self where a training of twice the length is affordable, reg
    instead of label smoothing.

    Reference: Yuan, Tay, Li, Wang, Feng: Revisiting Knowledge Distillation via Label Smoothing Regularization,
    CVPR 2020.
    """

    name = "tf_kd"
    card = Card("TF-KD", takes_run=True)
    takes_weight = True

    variant: Literal["self", "reg"] = "self"
    temperature: Positive | None = None
    alpha: Share | None = None
    multiplier: Positive = field(default=1.0, kw_only=True)
    a: Annotated[float | None, Range(gt=0, lt=1)] = field(default=None, kw_only=True)
    released: bool | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.released and self.variant != "reg":
            raise PskdError(f"released=True belongs to variant='reg'; with {self.variant!r} set multiplier instead")
        self.released = self.variant == "reg" if self.released is None else self.released
        given, usual = (self.temperature, self.alpha, self.a), DEFAULTS[self.variant, self.released]
        temperature, alpha, a = (default if own is None else own for own, default in zip(given, usual, strict=True))
        self._constants = self.temperature, self.alpha, self.a = temperature, alpha, a
        self.needs = frozenset({"teacher_logits"} if self.variant == "self" else ())

    def loss(
        self,
        output: Output,
        targets: Targets,
        *,
        teacher_logits: Tensor | None = None,
        distilled: Tensor | None = None,
    ) -> Loss:
        batch, (temperature, alpha, _) = self.door(output, targets, distilled), self._constants
        share = batch.where_distilled(alpha)
        if self.variant == "self":
            given = check_given("teacher_logits", teacher_logits, batch, "the teacher's for the same images")
            divergence = temperature**2 * softened_divergence(batch.logits, given, temperature)
            divergence = divergence if batch.label_weight is None else batch.label_weight * divergence
        else:
            divergence = self._hand_made_divergence(batch)
        labelled = (1 - share) * batch.cross_entropy(batch.target)
        return self.reduced(batch, {"cross_entropy": labelled, "distillation": share * self.multiplier * divergence})

    def _hand_made_divergence(self, batch: Batch) -> Tensor:
        """``KL(teacher_T || p_T)``, or released ``KL(teacher_T || p)``, of each label times its portion and weight."""
        others, (temperature, _, a) = batch.logits.shape[1] - 1, self._constants
        if not a * (others + 1) > 1:
            raise PskdError(f"a must lie in (1/K, 1), here K = {others + 1}, got {a}")
        if self.released:
            student = batch
            gap = (a - (1 - a) / others) / temperature
        else:
            student = batch.of_logits(batch.logits.to(batch.log_p.dtype) / temperature)
            gap = math.log(a * others / (1 - a)) / temperature
        # The teacher is a softmax of logits with `gap` at the label and 0 elsewhere, which is a smoothed label.
        at_label = 1 / (1 + others * math.exp(-gap))
        elsewhere = at_label * math.exp(-gap)
        target = batch.target if batch.weight is None else batch.target.weighted_by_label(batch.weight)
        cross_entropy = student.unweighted().cross_entropy(target.smoothed((others + 1) * elsewhere))
        entropy = others * elsewhere * gap - math.log(at_label)
        return cross_entropy - (entropy if target.mass is None else entropy * target.mass)
