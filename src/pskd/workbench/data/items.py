"""A user's own data sets: anything with a length whose items are (image, class index)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from pskd.errors import PskdError
from pskd.indexed import fingerprint
from pskd.workbench.data.folder import photo_view
from pskd.workbench.data.image_data import ImageData, channel_statistics
from pskd.workbench.data.splits import Opened
from pskd.workbench.data.view import Source, View, centred, decode, pixels

SPLITS = ("train", "val", "test")
LOOKED_AT = 1000  # images whose pixels give the channels' means and deviations
FIRST_LOOK = 100  # of these, at most, that say whether all have one size, and whether there is colour


@dataclass(frozen=True, eq=False)
class Items(Opened):
    """A split of a map-style data set. Its items are opened by worker processes, as files are.

    Args:
        dataset: of (image, class index); an image is a PIL image, or a tensor (C, H, W) or array (H, W) or (H, W, C) of
            uint8, or of numbers in 0..1.
        which: (N,) int64, the items that belong to the split.
        labels: (N,) int64.
        view: what the model sees of an image.
    """

    dataset: Any
    which: Tensor
    labels: Tensor
    view: View

    @property
    def fingerprint(self) -> str:
        """A hash of what identifies each sample, as far as the data set shows it."""
        return fingerprint([fingerprint(self.dataset), self.which, self.labels])

    def identities(self) -> Iterator[bytes] | None:
        own = getattr(self.dataset, "fingerprint", None)  # who has one vouches for each image
        if not isinstance(own, str):
            return None
        return (f"{own}\0{place}".encode() for place in self.which.tolist())

    def subset(self, index: Tensor) -> Items:
        return Items(self.dataset, self.which[index], self.labels[index], self.view)

    def source(self, index: int) -> Image.Image:
        place = int(self.which[index])
        return as_image(self.dataset[place][0], f"item {place} of the data set")


def from_datasets(name: str, found: Any, image_size: int | None = None) -> ImageData:
    """The data set of ``{"train": ..., "test": ..., "val": ...}``, of which ``val`` may be missing."""
    if not isinstance(found, Mapping) or not {"train", "test"} <= found.keys() <= set(SPLITS):
        what = f"a dictionary of {', '.join(map(str, found))}" if isinstance(found, Mapping) else type(found).__name__
        raise PskdError(
            f"data={name} must return an ImageData or a dictionary with train, test and perhaps val; got {what}"
        )
    labels = {split: _labels(name, split, dataset) for split, dataset in found.items()}
    count = int(labels["train"].max()) + 1
    names = getattr(found["train"], "classes", None) or range(count)
    classes = tuple(map(str, names))
    for split, own in labels.items():
        if len(classes) < 2 or int(own.max()) >= len(classes):
            raise PskdError(f"data={name}: {split} has class {int(own.max())}, but there are {len(classes)} classes")
    view = _view(name, found["train"], image_size)
    splits = {
        split: Items(dataset, torch.arange(len(labels[split])), labels[split], view) for split, dataset in found.items()
    }
    return ImageData(name, classes, splits["train"], splits.get("val"), splits["test"], view)


def _view(name: str, train: Any, image_size: int | None) -> View:
    """Images of one size as they are, others as photos; channels, means and deviations are those of some of them."""
    places = list(dict.fromkeys(torch.linspace(0, len(train) - 1, min(LOOKED_AT, len(train))).long().tolist()))
    some = places[:: -(-len(places) // FIRST_LOOK)]
    few = [as_image(train[place][0], f"data={name}: item {place} of train") for place in some]
    same = len({image.size for image in few}) == 1
    photos = photo_view(image_size)
    size = (few[0].height, few[0].width) if same and image_size is None else photos.size
    resize = None if same else photos.resize
    channels = max(len(image.getbands()) for image in few)
    seen = (decode(as_image(train[place][0], f"item {place}"), channels) for place in places)
    mean, std = channel_statistics(torch.stack([pixels(centred(image, size, resize)) for image in seen]))
    return View(channels, size, resize, mean, std)


def as_image(value: Any, what: str) -> Image.Image:
    """A PIL image, tensor or array as an 8-bit grey or RGB image."""
    if isinstance(value, Image.Image):
        return value if value.mode in ("L", "RGB") else value.convert("RGB")
    array = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
    if isinstance(value, Tensor) and array.ndim == 3:
        array = array.transpose(1, 2, 0)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] != 3) or 0 in array.shape:
        raise PskdError(f"{what} has shape {array.shape}: give (H, W) or 3 channels, those of a tensor first")
    if array.dtype.kind == "f":
        if not (np.isfinite(array).all() and array.min() >= 0 and array.max() <= 1):
            raise PskdError(f"{what} has numbers outside 0..1: leave out the normalisation, it is done here")
        array = np.rint(array * 255)
    elif array.dtype != np.uint8:
        raise PskdError(f"{what} is {array.dtype}: give uint8, or numbers in 0..1")
    return Image.fromarray(array.astype(np.uint8))


def source_of(value: Any, what: str) -> Source:
    """What a view can open: files and PIL images as they are, tensors and arrays as images."""
    return value if isinstance(value, str | os.PathLike | Image.Image) else as_image(value, what)


def _labels(name: str, split: str, dataset: Any) -> Tensor:
    """The class indices (N,) of a data set: its ``targets`` or ``labels``, or those of its items, one by one."""
    try:
        count = len(dataset)
        own = next((found for key in ("targets", "labels") if (found := getattr(dataset, key, None)) is not None), None)
        labels = torch.as_tensor([int(dataset[i][1]) for i in range(count)] if own is None else own)
    except (TypeError, ValueError, LookupError) as error:
        raise PskdError(
            f"data={name}: {split} must have a length and items of (image, class index): {error}"
        ) from error
    if labels.shape != (count,) or labels.is_floating_point() or not count or int(labels.min()) < 0:
        raise PskdError(f"data={name}: {split} needs one class index, 0 or more, for each of its {count} items")
    return labels.long()
