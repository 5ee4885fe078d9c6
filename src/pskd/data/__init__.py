"""Image data sets: what they are, where they come from, and how they are split."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from pskd.data import subsets
from pskd.data.digits import load_digits
from pskd.data.folder import load_folder, load_imagenet
from pskd.data.image_data import ImageData
from pskd.data.npz import load_npz
from pskd.data.published import load_cifar, load_fashion_mnist
from pskd.data.splits import Batch, InMemory, OnDisk, Split
from pskd.data.view import View
from pskd.errors import PskdError

__all__ = ["NAMES", "Batch", "ImageData", "InMemory", "OnDisk", "Split", "View", "load"]

NAMES = ("digits", "cifar10", "cifar100", "fashion_mnist", "imagenet", "folder", "npz")
_ANY_SIZE = ("imagenet", "folder")
_USERS_OWN = ("imagenet", "folder", "npz")


def load(
    name: str,
    *,
    root: str | os.PathLike[str] | None = None,
    download: bool = False,
    val_fraction: float = 0.0,
    seed: int = 0,
    image_size: int | None = None,
    num_classes: int | None = None,
    per_class: int | None = None,
) -> ImageData:
    """Load a data set.

    Args:
        name: one of ``NAMES``.
        root: the folder that holds the published files or the class folders; for ``npz`` the file. ``digits`` has none.
        download: fetch what is missing.
        val_fraction: the part of the training samples that becomes the validation split, drawn after ``per_class``.
        seed: of ``val_fraction`` and ``per_class``; the test set never depends on it.
        image_size: the side of the model's input: 224 for data whose images differ in size (imagenet, folder); others
            are as they were published, or made smaller.
        num_classes: keep the first so many classes only.
        per_class: keep so many training samples of each class only.
    """
    if name not in NAMES:
        nearest = difflib.get_close_matches(name, NAMES, n=1)
        hint = f" (did you mean {nearest[0]}?)" if nearest else ""
        raise PskdError(f"data.name={name} is unknown{hint}: take one of {', '.join(NAMES)}")
    if download and name in _USERS_OWN:
        raise PskdError(f"data.download=true: '{name}' cannot be downloaded, name the data with data.root=...")

    data = _load(name, root, download, image_size)
    if image_size is not None and name not in _ANY_SIZE:
        data = subsets.smaller(data, image_size)
    if num_classes is not None:
        data = subsets.first_classes(data, num_classes)
    if per_class is not None:
        data = subsets.few_per_class(data, per_class, seed)
    if val_fraction:
        data = subsets.hold_out(data, val_fraction, seed)
    return data


def _load(name: str, root: str | os.PathLike[str] | None, download: bool, image_size: int | None) -> ImageData:
    if name == "digits":
        return load_digits()
    if root is None:
        raise PskdError(f"'{name}' needs data.root=..., the {'file' if name == 'npz' else 'folder'} that holds it")
    place = Path(root).expanduser()
    match name:
        case "folder":
            return load_folder(place, image_size)
        case "imagenet":
            return load_imagenet(place, image_size)
        case "npz":
            return load_npz(place)
        case "fashion_mnist":
            return load_fashion_mnist(place, download)
        case _:
            return load_cifar(name, place, download)
