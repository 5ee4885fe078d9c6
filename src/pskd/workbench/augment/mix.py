"""One of the mixes, with the rule for who is mixed and who is distilled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from pskd.targets import Targets
from pskd.workbench.augment.cutmix import cutmix
from pskd.workbench.augment.cutout import cutout
from pskd.workbench.augment.mixing import half, whole_batch
from pskd.workbench.augment.mixup import mixup


class Mixed(NamedTuple):
    """A batch after mixing: class indices or pairs ``(a, b, lam)``, and the samples (B) a method may distil."""

    images: Tensor
    targets: Targets
    distilled: Tensor | None


@dataclass(frozen=True)
class Mix:
    """Cutout, CutMix or Mixup of a batch.

    Args:
        name: "none", "cutout", "cutmix", "mixup", or "mixup_cutmix": either of the two, by turns at random.
        shares: the method takes half of the samples plain and leaves the other half to the mix (PS-KD, CS-KD).
        hole: side of Cutout's square in pixels.
        beta: of CutMix's and Mixup's Beta distribution.
        probability: of mixing a batch, where the method does not share; None is 0.5 for CutMix, 1 for the others.
        box: of CutMix, "exact" or "released": see ``cutmix``.
    """

    name: str
    shares: bool
    hole: int = 8
    beta: float = 1.0
    probability: float | None = None
    box: str = "exact"

    def __call__(self, images: Tensor, labels: Tensor, index: Tensor, *, seed: int, epoch: int) -> Mixed:
        """Mix normalised ``images`` (B, C, H, W) **in place**; labels and index are (B)."""
        if self.name == "none":
            return Mixed(images, labels, None)
        distilled = None
        if self.shares:
            apply = half(index, seed=seed, epoch=epoch)
            distilled = ~apply
        else:
            usual = 0.5 if self.name == "cutmix" else 1.0
            probability = usual if self.probability is None else self.probability
            apply = whole_batch(index, seed=seed, epoch=epoch, probability=probability)
        if self.name == "cutout":
            return Mixed(cutout(images, index, seed=seed, epoch=epoch, hole=self.hole, apply=apply), labels, distilled)
        pasted = blended = apply
        if self.name == "mixup_cutmix":
            turn = whole_batch(index, seed=seed, epoch=epoch, probability=0.5, stream="which mix")
            pasted, blended = apply & turn, apply & ~turn
        pairs = []
        if "cutmix" in self.name:
            exact = self.box == "exact"
            images, pair = cutmix(
                images, labels, index, seed=seed, epoch=epoch, beta=self.beta, exact=exact, apply=pasted
            )
            pairs.append(pair)
        if "mixup" in self.name:
            images, pair = mixup(images, labels, index, seed=seed, epoch=epoch, alpha=self.beta, apply=blended)
            pairs.append(pair)
        # Partners are the same ones, and of a batch one of the two shares is 1 everywhere.
        own, other, share = pairs[0]
        return Mixed(images, (own, other, share * pairs[-1][2] if len(pairs) > 1 else share), distilled)
