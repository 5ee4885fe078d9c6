"""Parts of a data set: fewer classes, fewer samples of each, a validation split; and wrong labels, for studies.

All draws depend on the seed alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from pskd.errors import PskdError
from pskd.random import shuffled, uniform
from pskd.workbench.data.image_data import ImageData, in_memory
from pskd.workbench.data.splits import InMemory
from pskd.workbench.data.view import View


def first_classes(data: ImageData, num_classes: int) -> ImageData:
    """The data set with its first ``num_classes`` classes only."""
    if not 2 <= num_classes <= len(data.classes):
        raise PskdError(f"data.num_classes={num_classes}: take 2 to {len(data.classes)}, the classes of '{data.name}'")
    parts: dict[str, Any] = {
        name: split.subset((split.labels < num_classes).nonzero().squeeze(1)) for name, split in data.splits.items()
    }
    return replace(data, classes=data.classes[:num_classes], **parts)


def shrink_images(data: ImageData, image_size: int) -> ImageData:
    """The data set with square images of ``image_size`` pixels, each the mean of those it covers."""
    parts: dict[str, Any] = {}
    for name, split in data.splits.items():
        assert isinstance(split, InMemory)
        if image_size > min(split.images.shape[2:]):
            sides = " x ".join(map(str, split.images.shape[2:]))
            raise PskdError(f"data.image_size={image_size}: the images of '{data.name}' are {sides}, take fewer pixels")
        small = F.interpolate(split.images.float(), (image_size, image_size), mode="area")
        parts[name] = small.round().to(torch.uint8), split.labels
    return in_memory(data.name, data.classes, **parts)


def change_view(data: ImageData, view: View) -> ImageData:
    """The data set in another view."""
    seen: dict[str, Any] = {name: replace(split, view=view) for name, split in data.splits.items()}  # type: ignore[type-var]
    return replace(data, view=view, **seen)


def limit_per_class(data: ImageData, per_class: int, seed: int, *, at_most: bool = False) -> ImageData:
    """The data set with ``per_class`` training samples of each class, or with all of a class that has fewer."""
    labels = data.train.labels
    counts = labels.bincount(minlength=len(data.classes))
    smallest = int(counts.argmin())
    if per_class < 1 or (per_class > counts[smallest] and not at_most):
        raise PskdError(
            f"data.per_class={per_class}: take 1 to {counts[smallest]}, "
            f"the number of training images of class '{data.classes[smallest]}'"
        )
    keep = draw_per_class(labels, counts.clamp(max=per_class), seed, "per_class")
    return replace(data, train=data.train.subset(keep.nonzero().squeeze(1)))


def hold_out(data: ImageData, fraction: float, seed: int) -> ImageData:
    """Make a random part of the training samples the validation split."""
    if data.val is not None:
        raise PskdError(f"data.val_fraction={fraction}: '{data.name}' has a validation split of its own, set it to 0")
    total = len(data.train)
    held_out = round(total * fraction) if 0 < fraction < 1 else 0
    if not 0 < held_out < total:
        raise PskdError(
            f"data.val_fraction={fraction} of {total} training samples leaves none on one side: take e.g. 0.1"
        )
    order = shuffled(torch.arange(total), seed=seed, epoch=0, stream="validation")
    val, train = order[:held_out].sort().values, order[held_out:].sort().values
    return replace(data, train=data.train.subset(train), val=data.train.subset(val))


def add_label_noise(data: ImageData, share: float, seed: int) -> ImageData:
    """The data set with this share of its training labels replaced, each by any of the other classes alike."""
    if not 0 < share < 1:
        raise PskdError(f"data.noise={share}: give the share of training labels to replace, 0 or more and less than 1")
    labels, every = data.train.labels, torch.arange(len(data.train))
    wrong = shuffled(every, seed=seed, epoch=0, stream="noise")[: round(share * len(every))]
    others = len(data.classes) - 1
    shift = 1 + (uniform(wrong, seed=seed, epoch=0, stream="wrong label").squeeze(1) * others).long()
    noisy = labels.index_put((wrong,), (labels[wrong] + shift) % len(data.classes))
    return replace(data, train=replace(data.train, labels=noisy))  # type: ignore[type-var]


def draw_per_class(labels: Tensor, counts: Tensor, seed: int, stream: str) -> Tensor:
    """Draw ``counts[c]`` random samples of each class c: a mask (N,) over ``labels`` (N,)."""
    order = shuffled(torch.arange(len(labels)), seed=seed, epoch=0, stream=stream)
    by_class = order[labels[order].argsort(stable=True)]  # class after class, shuffled inside
    sizes = labels.bincount(minlength=len(counts))
    rank = torch.arange(len(labels)) - (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
    mask = torch.zeros(len(labels), dtype=torch.bool)
    mask[by_class] = rank < counts.repeat_interleave(sizes)
    return mask
