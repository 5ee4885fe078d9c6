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
from pskd.workbench.data.refusing import refusing
from pskd.workbench.data.splits import OpenedSplit
from pskd.workbench.data.view import Source, View, cut_centre, decode, pixels

LOOKED_AT = 1000  # images whose pixels give the channels' means and deviations
FIRST_LOOK = 100  # of these, at most, that say whether all have one size, and whether there is colour


@dataclass(frozen=True, eq=False)
class Items(OpenedSplit):
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
        own = getattr(self.dataset, "fingerprint", None)  # a data set with one promises that no image changes
        if not isinstance(own, str):
            return None
        return (f"{own}\0{place}".encode() for place in self.which.tolist())

    def subset(self, index: Tensor) -> Items:
        return Items(self.dataset, self.which[index], self.labels[index], self.view)

    def source(self, index: int) -> Image.Image:
        place = int(self.which[index])
        return as_image(self.dataset[place][0], f"item {place} of the data set")


def from_datasets(name: str, datasets: Any, image_size: int | None = None) -> ImageData:
    """The data set of ``{"train": ..., "test": ..., "val": ...}``, of which ``val`` may be missing."""
    if not isinstance(datasets, Mapping) or not {"train", "test"} <= datasets.keys() <= {"train", "val", "test"}:
        keys = f"a dictionary of {', '.join(map(str, datasets))}" if isinstance(datasets, Mapping) else ""
        raise PskdError(
            f"data={name} must return an ImageData or a dictionary with train, test and perhaps val;"
            f" got {keys or type(datasets).__name__}"
        )
    labels = {split: _labels(name, split, dataset) for split, dataset in datasets.items()}
    names = getattr(datasets["train"], "classes", None) or range(int(labels["train"].max()) + 1)
    classes = tuple(map(str, names))
    for split, own in labels.items():
        if len(classes) < 2 or int(own.max()) >= len(classes):
            raise PskdError(f"data={name}: {split} has class {int(own.max())}, but there are {len(classes)} classes")
    view = _view(name, datasets["train"], image_size)
    splits = {split: Items(datasets[split], torch.arange(len(own)), own, view) for split, own in labels.items()}
    return ImageData(name, classes, splits["train"], splits.get("val"), splits["test"], view)


def _view(name: str, train: Any, image_size: int | None) -> View:
    """Images of one size stay as they are, others are seen as photos; some give the channels, means and deviations."""
    places = list(dict.fromkeys(torch.linspace(0, len(train) - 1, min(LOOKED_AT, len(train))).long().tolist()))
    some = places[:: -(-len(places) // FIRST_LOOK)]
    few = [as_image(train[place][0], f"data={name}: item {place} of train") for place in some]
    same = len({image.size for image in few}) == 1
    photos = photo_view(image_size)
    size = (few[0].height, few[0].width) if same and image_size is None else photos.size
    resize = None if same else photos.resize
    channels = max(len(image.getbands()) for image in few)
    seen = (decode(as_image(train[place][0], f"item {place}"), channels) for place in places)
    mean, std = channel_statistics(torch.stack([pixels(cut_centre(image, size, resize)) for image in seen]))
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
    advice = "it must have a length and items of (image, class index)"
    with refusing(f"data={name}: {split} is no data set", advice, TypeError, ValueError, LookupError):
        count = len(dataset)
        lists = [own for key in ("targets", "labels") if (own := getattr(dataset, key, None)) is not None]
        labels = torch.as_tensor(lists[0] if lists else [int(dataset[i][1]) for i in range(count)])
    if labels.shape != (count,) or labels.is_floating_point() or not count or int(labels.min()) < 0:
        raise PskdError(f"data={name}: {split} needs one class index, 0 or more, for each of its {count} items")
    return labels.long()
