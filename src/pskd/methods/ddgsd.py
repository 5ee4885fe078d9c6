"""Data-distortion guided self-distillation: two views of a sample teach each other."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from pskd.linear_head import Output
from pskd.methods.base import Loss, Method
from pskd.methods.card import Card
from pskd.methods.distilling import check_given, softened_divergence
from pskd.settings import NotNegative, Positive
from pskd.targets import Targets


@dataclass(eq=False, repr=False)
class DDGSD(Method):
    """``L = (H(y, a) + H(y, b)) / 2 + lam * T^2 * (KL(b_T || a_T) + KL(a_T || b_T))``, a and b of two views.

    In each divergence the first one is fixed. The authors' further term, 5e-4 times the squared distance of the views'
    mean features, is not here: a method sees logits.

    Args:
        temperature: T. Re-implementations: 3 and 4.
        lam: lambda, at least 0. Re-implementations: 1.

    No code of the authors was found, and re-implementations differ in how much labels count against divergences: one
    halves the labels' part once more; one has ``H(y, a) + H(y, b)``, no T^2, and the mean of the divergences over
    classes, with gradient through both sides.

    ``view_logits`` are the model's own for the other view, with gradient, from a forward pass of its own. A mixed image
    has no second view: where ``distilled`` is false, only ``H(y, a)`` counts.

    Cost: a second forward and backward pass, so a step takes twice as long. Use it where augmentation is strong.

    Reference: Xu, Liu: Data-Distortion Guided Self-Distillation for Deep Neural Networks, AAAI 2019.
    """

    name = "ddgsd"
    card = Card("DDGSD", shares_mix=True)
    takes_weight = True
    needs = frozenset({"view_logits"})

    temperature: Positive = 3.0
    lam: NotNegative = 1.0

    def loss(
        self,
        output: Output,
        targets: Targets,
        *,
        view_logits: Tensor | None = None,
        distilled: Tensor | None = None,
    ) -> Loss:
        batch = self.door(output, targets, distilled)
        view = check_given("view_logits", view_logits, batch, "the model's for another view of the same images")
        other, half, target = batch.of_logits(view), batch.where_distilled(0.5), batch.target
        labelled = (1 - half) * batch.cross_entropy(target) + half * other.cross_entropy(target)
        masked = batch.masked or other.masked
        one = softened_divergence(batch.logits, view, self.temperature, masked)
        two = softened_divergence(view, batch.logits, self.temperature, masked)
        divergence = self.lam * self.temperature**2 * (one + two)
        return self.reduced(batch, {"cross_entropy": labelled, "distillation": batch.counted(divergence)})
