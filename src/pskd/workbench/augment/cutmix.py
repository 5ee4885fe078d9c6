"""CutMix: a box of every image comes from another one, and so does that share of its label."""

from __future__ import annotations

from torch import Tensor

from pskd.random import shuffled, uniform
from pskd.workbench.augment.mixing import band, box, check_batch, check_parameter, symmetric_beta


def cutmix(
    images: Tensor,
    labels: Tensor,
    index: Tensor,
    *,
    seed: int,
    epoch: int,
    beta: float = 1.0,
    exact: bool = True,
    apply: Tensor | None = None,
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """Paste a box of another image of the batch into each image; **changes ``images``**.

    A box has sides ``int(side * sqrt(1 - lam))``, ``lam ~ Beta(beta, beta)``, its centre lies on any pixel with equal
    probability, and what is outside the image is clipped. Without ``exact`` an odd side loses a pixel: the authors'
    code goes from half of it, rounded down, before the centre to as much after it.

    Every image has its own ``lam``, box and partner: in expectation the same as one ``lam`` and box per batch, and
    independent of how the batches are cut.

    Args:
        images: (B, C, H, W), normalised, in any memory format.
        labels: (B) class indices.
        index: (B) int64, the samples' numbers in their data set.
        beta: of the Beta distribution; 1 (the paper's) makes all areas equally likely.
        exact: keep odd sides; of 32 pixels 0.310 of an image is pasted on average, and else 0.299.
        apply: (B) bool, which images get a box; None means all. Any image of the batch may be the partner.

    Returns:
        The images and the labels as a pair ``(a, b, lam)``: the image's own class, the partner's, and the part (B) of
        the pixels that is the image's own, exactly; 1 for images without a box.

    Reference: Yun, Han, Oh, Chun, Choe, Yoo: CutMix: Regularization Strategy to Train Strong Classifiers with
    Localizable Features, ICCV 2019.
    """
    check_batch(images, index, apply, labels)
    check_parameter("beta", beta)
    height, width = images.shape[2:]
    index = index.to(images.device)
    order = shuffled(index, seed=seed, epoch=epoch, stream="mixing partner")
    share, y, x = uniform(index, seed=seed, epoch=epoch, stream="cutmix", draws=3).unbind(1)
    # lam > 0, so a box never fills the image; float32 rounds the smallest to 0.
    side = (1 - symmetric_beta(share, beta)).sqrt().clamp_max(1 - 2**-24)
    tall, wide = (height * side).long(), (width * side).long()
    if not exact:
        tall, wide = tall - tall % 2, wide - wide % 2
    rows, columns = band(y, tall, height), band(x, wide, width)
    if apply is not None:
        rows &= apply.to(images.device)[:, None]
    view, inside = box(images, rows, columns)
    view.lerp_(view.index_select(0, order), inside)
    lam = (height * width - rows.sum(1) * columns.sum(1)) / (height * width)
    return images, (labels, labels[order.to(labels.device)], lam)
