"""CutMix: a box of every image comes from another one, and so does that share of its label."""

from __future__ import annotations

from torch import Tensor

from pskd.workbench.augment.mixup import symmetric_beta
from pskd.workbench.augment.regions import around, inside


def cutmix(images: Tensor, partner: Tensor, uniform: Tensor, beta: float, exact: bool, apply: Tensor) -> Tensor:
    """Paste a box of its partner into each image; **changes ``images``**.

    A box has sides ``int(side * sqrt(1 - lam))``, ``lam ~ Beta(beta, beta)``, its centre lies on any pixel with equal
    probability, and what is outside the image is clipped. Without ``exact`` an odd side loses a pixel: the authors'
    code goes from half of it, rounded down, before the centre to as much after it.

    Every image has its own ``lam``, box and partner: in expectation the same as one ``lam`` and box per batch, and
    independent of how the batches are cut.

    Args:
        images, partner, apply: as those of ``mixup``.
        uniform: (B, 3) numbers in [0, 1): lam and the centre.
        beta: of the Beta distribution; 1 (the paper's) makes all areas equally likely.
        exact: keep odd sides; of 32 pixels 0.310 of an image is pasted on average, and else 0.299.

    Returns:
        The part (B) of the pixels that is the image's own, exactly; 1 for images without a box.

    Reference: Yun, Han, Oh, Chun, Choe, Yoo: CutMix: Regularization Strategy to Train Strong Classifiers with
    Localizable Features, ICCV 2019.
    """
    height, width = images.shape[2:]
    share, y, x = uniform.unbind(1)
    # lam > 0, so a box never fills the image; float32 rounds the smallest to 0.
    side = (1 - symmetric_beta(share, beta)).sqrt().clamp_max(1 - 2**-24)
    tall, wide = (height * side).long(), (width * side).long()
    if not exact:
        tall, wide = tall - tall % 2, wide - wide % 2
    rows, columns = around(y, tall, height) & apply[:, None], around(x, wide, width)
    view, ones = inside(images, rows, columns)
    view.lerp_(view.index_select(0, partner), ones)
    return (height * width - rows.sum(1) * columns.sum(1)) / (height * width)
