"""What happens to a training image between the data set and the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor

from pskd.errors import PskdError
from pskd.random import uniform
from pskd.tensors import cached_parts, empty
from pskd.workbench.augment import colour, geometry
from pskd.workbench.augment.erasing import erase
from pskd.workbench.data.pictures import Picture
from pskd.workbench.data.view import View

Crop = Literal["pad", "resized", "random", "none"]
BOXES = ("resized", "random")  # crops that are a box of the image, resized


@dataclass(frozen=True)
class Augment:
    """Random crop, flip and colours, then the view's normalisation: a pure function of (seed, epoch, sample).

    Args:
        view: the images' size and normalisation.
        crop: ``"pad"``: as large as the image, from the image with a black border; ``"resized"``: a random box of 8 to
            100% of the area, resized; ``"random"``: a random box of 7/8 of either side, resized: 224 pixels out of an
            image that was resized to 256; ``"none"``.
        pad: the border's width in pixels.
        flip: mirror half of the images.
        jitter: brightness, contrast and saturation change by up to this part (ImageNet's recipe: 0.4).
        lighting: standard deviation of the shift along the principal colours (ImageNet's recipe: 0.1); RGB only.
        clamp: keep colours in their range after each change of the jitter (ImageNet's recipe: false).
        auto: ``"trivial"`` is TrivialAugment: one random operation on each image.
        erase: the probability that a box of the image becomes blank.
    """

    view: View
    crop: Crop = "pad"
    pad: int = 4
    flip: bool = True
    jitter: float = 0.0
    lighting: float = 0.0
    clamp: bool = True
    auto: Literal["none", "trivial"] = "none"
    erase: float = 0.0

    def __post_init__(self) -> None:
        if self.crop not in get_args(Crop):
            raise PskdError(f"augment.crop={self.crop} is unknown: take one of {', '.join(get_args(Crop))}")
        if self.pad < 0:
            raise PskdError(f"augment.pad={self.pad} is negative: give the width of the border in pixels")
        if not 0 <= self.jitter <= 1:
            raise PskdError(f"augment.jitter={self.jitter} is outside 0..1")
        if not 0 <= self.erase <= 1:
            raise PskdError(f"augment.erase={self.erase} is no probability: take 0 to 1")
        if not 0 <= self.lighting < float("inf"):
            raise PskdError(f"augment.lighting={self.lighting} must be 0 or a positive number")
        if self.lighting and self.view.channels != 3:
            raise PskdError(f"augment.lighting={self.lighting} needs colour images, these are grey: set it to 0")
        if self.auto == "trivial":
            import pskd.workbench.augment.trivial  # noqa: F401  # here, or each worker would import torchvision in each epoch

    def open(
        self, pictures: Sequence[Picture], index: Tensor, *, seed: int, epoch: int, out: Tensor | None = None
    ) -> Tensor:
        """The pixels of some images: a random box of each for the crops that are resized, else the central view.

        Boxes are cut out of the full resolution, so this part is done where files are decoded.

        Args:
            index: (B,) int64, the samples' numbers.
            out: where to write them.

        Returns:
            (B, C, H, W) uint8 of the view's size; call the object on them with ``opened=True``.
        """
        if out is None:
            out = torch.empty(len(pictures), self.view.channels, *self.view.size, dtype=torch.uint8)
        if self.crop in BOXES:
            height, width = torch.tensor([picture.size for picture in pictures]).unbind(1)
            boxes = self._boxes(height, width, index, seed, epoch).tolist()
            for place, picture, box in zip(out, pictures, boxes, strict=True):
                place.copy_(picture.cut(tuple(box)))
        else:
            for place, picture in zip(out, pictures, strict=True):
                place.copy_(picture.seen())
        return out.copy_(_trivially(out, index, seed, epoch)) if self.auto == "trivial" else out

    def __call__(
        self,
        images: Tensor,
        index: Tensor,
        *,
        seed: int,
        epoch: int,
        opened: bool = False,
        out: Tensor | None = None,
    ) -> Tensor:
        """Augment and normalise a batch on the device where it is.

        Args:
            images: (B, C, H, W) uint8 of the view's size.
            index: (B,) int64, the samples' numbers in their data set.
            opened: the images come from ``open``, which has already taken the box of a crop that is resized, and
                has made the change of ``auto``.
            out: where to write the result, of the images' shape.

        Returns:
            (B, C, H, W) float32, normalised.
        """
        numbers = partial(uniform, index, seed=seed, epoch=epoch)
        places = numbers(stream="place", draws=3)
        jitter = colour.Jitter(numbers(stream="jitter", draws=4), self.jitter, self.clamp) if self.jitter else None
        light = numbers(stream="lighting", draws=6) if self.lighting else None
        inputs = empty(images.shape, images.device) if out is None else out
        for part in cached_parts(images):
            own, out = index[part], inputs[part]
            out.copy_(self._placed(images[part], own, places[part], seed, epoch, opened))
            if jitter is not None:
                jitter(out, part)
            if light is not None:
                colour.lighting(out, light[part], self.lighting)
            self.view.standardize(out)
            if self.erase:
                erase(out, own, seed=seed, epoch=epoch, probability=self.erase)
        return inputs

    def _placed(self, images: Tensor, index: Tensor, places: Tensor, seed: int, epoch: int, opened: bool) -> Tensor:
        """Some images, cropped and mirrored, with the change of ``auto``."""
        if self.crop in BOXES and not opened:
            images = geometry.resized_crop(images, self._boxes(images.shape[2], images.shape[3], index, seed, epoch))
        if self.crop == "pad" and self.pad:
            top, left = (places[:, :2] * (2 * self.pad + 1)).long().unbind(1)
            images = geometry.shifted_crop(images, top, left, self.pad)
        if self.flip:
            images = geometry.mirror(images, places[:, 2] < 0.5)
        if self.auto == "trivial" and not opened:
            whole = images.round().to(torch.uint8) if images.is_floating_point() else images
            images = _trivially(whole, index, seed, epoch)
        return images

    def _boxes(self, height: int | Tensor, width: int | Tensor, index: Tensor, seed: int, epoch: int) -> Tensor:
        numbers = uniform(index, seed=seed, epoch=epoch, stream="box", draws=2 * geometry.ATTEMPTS + 2)
        make = geometry.random_boxes if self.crop == "resized" else geometry.shifted_boxes
        return make(numbers, height, width)


def _trivially(images: Tensor, index: Tensor, seed: int, epoch: int) -> Tensor:
    from pskd.workbench.augment.trivial import trivial_augment  # torchvision's import takes longer than torch's

    return trivial_augment(images, index, seed=seed, epoch=epoch)
