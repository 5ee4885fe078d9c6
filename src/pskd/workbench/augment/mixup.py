"""Mixup: every image is blended with another one, and so is its label."""

from __future__ import annotations

import torch
from torch import Tensor

from pskd.random import shuffled, uniform
from pskd.workbench.augment.mixing import check_batch, check_parameter, symmetric_beta


def mixup(
    images: Tensor,
    labels: Tensor,
    index: Tensor,
    *,
    seed: int,
    epoch: int,
    alpha: float = 1.0,
    apply: Tensor | None = None,
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """``lam * image + (1 - lam) * another image`` of the batch, ``lam ~ Beta(alpha, alpha)``; **changes ``images``**.

    Every image has its own ``lam`` and partner.

    Args:
        images: (B, C, H, W), normalised, in any memory format.
        labels: (B) class indices.
        index: (B) int64, the samples' numbers in their data set.
        alpha: of the Beta distribution. Its authors: 1 on CIFAR, 0.2 on ImageNet.
        apply: (B) bool, which images are blended; None means all. Any image of the batch may be the partner.

    Returns:
        The images and the labels as a pair ``(a, b, lam)``, lam (B); it is 1 for images that are not blended.

    Reference: Zhang, Cisse, Dauphin, Lopez-Paz: mixup: Beyond Empirical Risk Minimization, ICLR 2018.
    """
    check_batch(images, index, apply, labels)
    check_parameter("alpha", alpha)
    index = index.to(images.device)
    order = shuffled(index, seed=seed, epoch=epoch, stream="mixing partner")
    lam = symmetric_beta(uniform(index, seed=seed, epoch=epoch, stream="mixup").squeeze(1), alpha)
    if apply is not None:
        lam = torch.where(apply.to(images.device), lam, 1.0)
    images.lerp_(images[order], (1 - lam).to(images.dtype)[:, None, None, None])
    return images, (labels, labels[order.to(labels.device)], lam)
