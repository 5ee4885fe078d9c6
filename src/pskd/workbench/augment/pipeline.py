"""What happens to a training image between the data set and the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from pskd.errors import PskdError
from pskd.random import uniform
from pskd.tensors import to_device
from pskd.workbench.augment import colour, geometry
from pskd.workbench.augment.erasing import erase
from pskd.workbench.buffers import cached_parts, empty
from pskd.workbench.data.pictures import Picture
from pskd.workbench.data.view import View

BOXES = {"resized": geometry.random_boxes, "random": geometry.shifted_boxes}  # crops that are a box of the image


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
    crop: Literal["pad", "resized", "random", "none"] = "pad"
    pad: int = 4
    flip: bool = True
    jitter: float = 0.0
    lighting: float = 0.0
    clamp: bool = True
    auto: Literal["none", "trivial"] = "none"
    erase: float = 0.0

    def __post_init__(self) -> None:
        if self.jitter > 1:
            raise PskdError(f"augment.jitter={self.jitter} is outside 0..1")
        if self.lighting and self.view.channels != 3:
            raise PskdError(f"augment.lighting={self.lighting} needs colour images, these are grey: set it to 0")
        if self.auto == "trivial":
            import pskd.workbench.augment.trivial  # noqa: F401  # or each worker would import torchvision in each epoch

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
        return out.copy_(_trivial(out, index, seed, epoch)) if self.auto == "trivial" else out

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
            index: (B,) int64, the samples' numbers in their data set. Where they are on the host, no accelerator waits.
            opened: the images come from ``open``, which has already taken the box of a crop that is resized, and
                has made the change of ``auto``.
            out: where to write the result, of the images' shape.

        Returns:
            (B, C, H, W) float32, normalised.
        """
        samples = to_device(index, images.device)
        numbers = partial(uniform, samples, seed=seed, epoch=epoch)
        places = numbers(stream="place", draws=3)
        jitter = colour.Jitter(numbers(stream="jitter", draws=4), self.jitter, self.clamp) if self.jitter else None
        light = numbers(stream="lighting", draws=6) if self.lighting else None
        inputs = empty(images.shape, images.device) if out is None else out
        for part in cached_parts(images):
            out = inputs[part]
            pixels = self._crop_and_flip(images[part], samples[part], places[part], seed, epoch, opened)
            if self.auto == "trivial" and not opened:
                pixels = _trivial(pixels, index[part], seed, epoch)
            out.copy_(pixels)
            if jitter is not None:
                jitter(out, part)
            if light is not None:
                colour.lighting(out, light[part], self.lighting)
            self.view.standardize(out)
            if self.erase:
                erase(out, samples[part], seed=seed, epoch=epoch, probability=self.erase)
        return inputs

    def _crop_and_flip(
        self, images: Tensor, index: Tensor, places: Tensor, seed: int, epoch: int, opened: bool
    ) -> Tensor:
        if self.crop in BOXES and not opened:
            images = geometry.resized_crop(images, self._boxes(images.shape[2], images.shape[3], index, seed, epoch))
        if self.crop == "pad" and self.pad:
            top, left = (places[:, :2] * (2 * self.pad + 1)).long().unbind(1)
            images = geometry.shifted_crop(images, top, left, self.pad)
        return geometry.mirror(images, places[:, 2] < 0.5) if self.flip else images

    def _boxes(self, height: int | Tensor, width: int | Tensor, index: Tensor, seed: int, epoch: int) -> Tensor:
        numbers = uniform(index, seed=seed, epoch=epoch, stream="box", draws=2 * geometry.ATTEMPTS + 2)
        return BOXES[self.crop](numbers, height, width)


def _trivial(images: Tensor, index: Tensor, seed: int, epoch: int) -> Tensor:
    from pskd.workbench.augment.trivial import trivial_augment  # torchvision's import takes longer than torch's

    pixels = images.round().to(torch.uint8) if images.is_floating_point() else images
    return trivial_augment(pixels, index, seed=seed, epoch=epoch)
