"""Teacher-free knowledge distillation: the teacher is the same network trained before, or is made by hand."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self

import torch.nn.functional as F
from torch import Tensor

from pskd.errors import PskdError
from pskd.linear_head import Output
from pskd.methods.base import ClassWeight, Loss, Method, Surroundings, whole_logits
from pskd.methods.distilling import check_given, label_losses, label_weights, softened_divergence, where_distilled
from pskd.names import methods
from pskd.settings import Place, Positive, Range, Setting, Share, check_arguments
from pskd.targets import Reduction, Targets, reduced
from pskd.tensors import accumulation_dtype

# Variant -> temperature and alpha: the values that most models have in the paper's tables.
DEFAULTS = {"self": (20.0, 0.95), "reg": (40.0, 0.1)}


@methods.register("tf_kd")
class TFKD(Method):
    """``L = (1 - alpha) * H(y, p) + alpha * multiplier * s * KL(teacher_T || p_T)``, both softened by T.

    The teacher, and the scale s of its term:
        - ``variant="self"``: the same architecture trained before with plain cross-entropy, in eval mode on the very
          same (also mixed) images; called with ``teacher_logits=``, no gradient needed. s = T^2, as in the authors'
          code; their equation has s = 1, which is ``multiplier = 1 / T**2``.
        - ``variant="reg"``: made by hand, ``a`` at the label and ``(1 - a) / (K - 1)`` elsewhere. Softened by T it is
          ``softmax(log(u) / T)`` of these probabilities u, as for any distribution. Each label of a mixed pair has
          its teacher, and their divergences are mixed. s = 1: the published equation.
          ``released=True``: the term of the authors' code instead, ``alpha * multiplier * KL(softmax(u / T) || p)``:
          the probabilities themselves are taken for logits, and the student is not softened.

    Args:
        variant: "self" or "reg".
        temperature: T. The paper, self: 6 for ResNet-18, 20 for the others; reg on ImageNet: 40.
        alpha: in [0, 1]. The paper, self: 0.9 for DenseNet-121 and ResNeXt-29, 0.95 for the others; reg on ImageNet:
            0.1.
        multiplier: a further factor. The authors' code takes the mean over samples and classes and multiplies it by m,
            which is ``multiplier = m / K`` here: m is 50 for ResNet-18 and DenseNet-121, 100 for ResNeXt-29 on
            CIFAR-100.
        a: for reg, in (1/K, 1). The paper, on ImageNet: 0.95.
        released: for reg, see above.

    Where ``distilled`` is false, only ``H(y, p)`` counts, in full.

    Cost: self needs a finished training and one forward pass of the teacher per step; reg needs nothing, its teacher
    has two values per sample and is never built. Use self where a training of twice the length is affordable, reg
    instead of label smoothing.

    Reference: Yuan, Tay, Li, Wang, Feng: Revisiting Knowledge Distillation via Label Smoothing Regularization,
    CVPR 2020.
    """

    name = "tf_kd"
    title = "TF-KD"
    takes_weight = True

    def __init__(
        self,
        variant: Literal["self", "reg"] = "self",
        temperature: Positive | None = None,
        alpha: Share | None = None,
        *,
        multiplier: Positive = 1.0,
        a: Annotated[float, Range(gt=0, lt=1)] = 0.95,
        released: bool = False,
        reduction: Reduction = "mean",
        weight: ClassWeight = None,
    ) -> None:
        super().__init__(reduction=reduction, weight=weight)
        check_arguments(TFKD.__init__, locals())
        if released and variant != "reg":
            raise PskdError(f"released=True belongs to variant='reg'; with {variant!r} set multiplier instead")
        usual_temperature, usual_alpha = DEFAULTS[variant]
        self.variant, self.multiplier, self.a, self.released = variant, multiplier, a, released
        self.temperature = usual_temperature if temperature is None else temperature
        self.alpha = usual_alpha if alpha is None else alpha
        self.needs = frozenset({"teacher_logits"} if variant == "self" else ())

    @classmethod
    def settings(cls) -> dict[str, Setting]:
        """The teacher stands beside the variant that has one."""
        found = super().settings()
        return {name: found.pop(name) for name in ("variant", "teacher")} | found

    @classmethod
    def from_settings(
        cls, around: Surroundings, *, teacher: Annotated[str | None, Place()] = None, **settings: Any
    ) -> Self:
        """Who calls this loads the teacher and gives its logits.

        Args:
            teacher: for self, the folder of a finished run.
        """
        method = super().from_settings(around, **settings)
        if method.variant == "self" and teacher is None:
            raise PskdError("method.teacher is missing: name the folder of a finished run (of method=hard, usually)")
        if method.variant == "reg" and not method.a * around.num_classes > 1:
            raise PskdError(f"method.a={method.a} must be more than 1/{around.num_classes}, one over the classes")
        return method

    def loss(
        self,
        output: Output,
        targets: Targets,
        *,
        teacher_logits: Tensor | None = None,
        distilled: Tensor | None = None,
    ) -> Loss:
        logits = whole_logits(output)
        weight = self.weight_at(logits)
        losses, share = label_losses(logits, targets, weight=weight, checks=self._checks)
        if self.variant == "self":
            teacher_logits = check_given("teacher_logits", teacher_logits, logits, "the teacher's for the same images")
            counts = label_weights(targets, share, weight)
            divergence = self.temperature**2 * counts * softened_divergence(logits, teacher_logits, self.temperature)
        else:
            divergence = self._hand_made_divergence(logits, targets, weight)
        alpha = where_distilled(self.alpha, distilled, logits)
        cross_entropy = reduced((1 - alpha) * losses, share, self.reduction)
        distillation = reduced(alpha * self.multiplier * divergence, share, self.reduction)
        parts = {"cross_entropy": cross_entropy.detach(), "distillation": distillation.detach()}
        return Loss(cross_entropy + distillation, parts)

    def _hand_made_divergence(self, logits: Tensor, targets: Targets, weight: Tensor | None) -> Tensor:
        """``KL(teacher_T || p_T)``, or released ``KL(teacher_T || p)``, of each label times its portion and weight."""
        others = logits.shape[1] - 1
        if not self.a * (others + 1) > 1:
            raise PskdError(f"a must lie in (1/K, 1), here K = {others + 1}, got {self.a}")
        if self.released:
            student = logits
            gap = (self.a - (1 - self.a) / others) / self.temperature
        else:
            student = logits.to(accumulation_dtype(logits.dtype)) / self.temperature
            gap = math.log(self.a * others / (1 - self.a)) / self.temperature
        # The teacher is a softmax of logits with `gap` at the label and 0 elsewhere, which is a smoothed label.
        at_label = 1 / (1 + others * math.exp(-gap))
        elsewhere = at_label * math.exp(-gap)
        spread = (others + 1) * elsewhere
        cross_entropy, counts = label_losses(student, targets, spread, weight, by_label=True)
        entropy = others * elsewhere * gap - math.log(at_label)
        return cross_entropy - entropy * counts


def tf_kd_self_loss(
    logits: Tensor, labels: Tensor, teacher_logits: Tensor, temperature: float = 20.0, alpha: float = 0.95
) -> Tensor:
    """TF-KD with a teacher: its logits and the student's (B, K), class indices (B)."""
    teacher_t = (teacher_logits.detach() / temperature).softmax(1)
    return _distilled(logits, labels, teacher_t, temperature, alpha * temperature**2, 1 - alpha)


def tf_kd_reg_loss(
    logits: Tensor, labels: Tensor, temperature: float = 40.0, alpha: float = 0.1, a: float = 0.95
) -> Tensor:
    """TF-KD with a teacher made by hand: logits (B, K), class indices (B)."""
    others = logits.shape[1] - 1
    y = F.one_hot(labels, others + 1).to(logits.dtype)
    teacher = a * y + (1 - a) / others * (1 - y)
    teacher_t = (teacher.log() / temperature).softmax(1)
    return _distilled(logits, labels, teacher_t, temperature, alpha, 1 - alpha)


def _distilled(
    logits: Tensor, labels: Tensor, teacher_t: Tensor, temperature: float, distilled: float, hard: float
) -> Tensor:
    """Cross-entropy and divergence, with these weights."""
    log_p = logits.log_softmax(1)
    log_p_t = (logits / temperature).log_softmax(1)
    cross_entropy = -log_p.gather(1, labels[:, None])[:, 0]
    divergence = (teacher_t * (teacher_t.log() - log_p_t)).sum(1)
    return (hard * cross_entropy + distilled * divergence).mean()
