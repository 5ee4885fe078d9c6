"""Cutout, CutMix or Mixup of a batch: which samples are mixed, and which are distilled."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from pskd.random import shuffled, uniform
from pskd.targets import Targets
from pskd.workbench.augment.cutmix import cutmix
from pskd.workbench.augment.cutout import cutout
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
        name: "none", "cutout", "cutmix", "mixup", or "mixup_cutmix": for each batch one of the two at random.
        shares: a random half of the samples is mixed, and the method distils the other half (PS-KD, CS-KD).
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
        """Mix normalised ``images`` (B, C, H, W) **in place**; labels and index are (B) on the images' device."""
        if self.name == "none":
            return Mixed(images, labels, None)
        apply = self._choose(index, seed, epoch)
        distilled = ~apply if self.shares else None
        numbers = partial(uniform, index, seed=seed, epoch=epoch)
        if self.name == "cutout":
            images = cutout(images, numbers(stream="cutout", draws=2), self.hole, apply)
            return Mixed(images, labels, distilled)
        pasted = blended = apply
        if self.name == "mixup_cutmix":
            is_cutmix = whole_batch(index, seed=seed, epoch=epoch, probability=0.5, stream="which mix")
            pasted, blended = apply & is_cutmix, apply & ~is_cutmix
        partner = shuffled(index, seed=seed, epoch=epoch, stream="mixing partner")
        own = torch.ones(len(index), device=images.device)  # the share of an image's own class
        if "cutmix" in self.name:
            own = cutmix(images, partner, numbers(stream="cutmix", draws=3), self.beta, self.box == "exact", pasted)
        if "mixup" in self.name:  # for a batch of "mixup_cutmix" one of the two shares is 1
            own = own * mixup(images, partner, numbers(stream="mixup").squeeze(1), self.beta, blended)
        return Mixed(images, (labels, labels[partner], own), distilled)

    def _choose(self, index: Tensor, seed: int, epoch: int) -> Tensor:
        """True (B) for the samples that are mixed."""
        if self.shares:
            return half(index, seed=seed, epoch=epoch)
        usual = 0.5 if self.name == "cutmix" else 1.0
        probability = usual if self.probability is None else self.probability
        return whole_batch(index, seed=seed, epoch=epoch, probability=probability)


def half(index: Tensor, *, seed: int, epoch: int) -> Tensor:
    """True (B) with probability 0.5, each sample by itself."""
    return uniform(index, seed=seed, epoch=epoch, stream="half").squeeze(1) < 0.5


def whole_batch(index: Tensor, *, seed: int, epoch: int, probability: float, stream: str = "whole batch") -> Tensor:
    """All true or all false (B), true with this probability. CutMix's own rule: 0.5 on CIFAR, 1 on ImageNet."""
    number = uniform(index[:1], seed=seed, epoch=epoch, stream=stream).squeeze(1)
    return (number < probability).expand(len(index))
