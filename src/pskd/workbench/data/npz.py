"""One .npz file in the MedMNIST layout: ``train_images``, ``train_labels``, ``val_*`` (may be missing), ``test_*``.

``classes`` may hold the names of the classes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pskd.errors import PskdError
from pskd.workbench import registry
from pskd.workbench.data.image_data import ImageData, in_memory
from pskd.workbench.data.refusing import refusing, require_root
from pskd.workbench.reading import read_npz

MOST_CLASSES = 10_000_000
Arrays = dict[str, np.ndarray]


@registry.data.register("npz")
def load_npz(root: str | Path | None = None) -> ImageData:
    """Images (N, H, W), (N, H, W, 1) or (N, H, W, 3) of uint8; labels (N,) or (N, 1) of any integer type, from 0."""
    file = require_root("npz", root, "file")
    if not file.exists():
        raise PskdError(f"there is no file '{file}': name the .npz file with data.root=...")
    with refusing(f"cannot read '{file}'", "name an .npz file with data.root=...", PskdError):
        arrays = read_npz(file)
    names = ["train", "test", *(["val"] if {"val_images", "val_labels"} & arrays.keys() else [])]
    with refusing(f"'{file}' is not in the layout of MedMNIST", "correct it", PskdError):
        splits = {name: _split(arrays, name) for name in names}
        classes = _classes(arrays, splits)
    return in_memory("npz", classes, train=splits["train"], test=splits["test"], val=splits.get("val"))


def _split(arrays: Arrays, name: str) -> tuple[Tensor, Tensor]:
    for key in (f"{name}_images", f"{name}_labels"):
        if key not in arrays:
            raise PskdError(f"no array '{key}', only {', '.join(sorted(arrays)) or 'none'}")
    images, labels = arrays[f"{name}_images"], arrays[f"{name}_labels"]
    if images.dtype != np.uint8:
        raise PskdError(f"{name}_images is {images.dtype}, but pixels must be uint8 in 0..255")
    if images.ndim not in (3, 4) or (images.ndim == 4 and images.shape[3] not in (1, 3)) or 0 in images.shape:
        raise PskdError(f"{name}_images has shape {images.shape}, not (N, H, W) or (N, H, W, 3)")
    if labels.dtype.kind not in "iu":
        raise PskdError(f"{name}_labels is {labels.dtype}, but labels must be integers")
    if labels.shape not in ((len(images),), (len(images), 1)):
        raise PskdError(f"{name}_labels has shape {labels.shape}, not one label for each image")
    if labels.max() >= MOST_CLASSES:
        raise PskdError(f"{name}_labels has the label {labels.max()}, the largest allowed is {MOST_CLASSES - 1}")
    if labels.min() < 0:
        raise PskdError(f"{name}_labels has the negative label {labels.min()}, classes count from 0")
    pixels = torch.from_numpy(images.reshape(*images.shape[:3], -1)).permute(0, 3, 1, 2).contiguous()
    return pixels, torch.from_numpy(labels.reshape(-1).astype(np.int64))


def _classes(arrays: Arrays, splits: dict[str, tuple[Tensor, Tensor]]) -> tuple[str, ...]:
    """The names of the classes; all splits must agree with the training split."""
    images, labels = splits["train"]
    count = int(labels.max()) + 1
    names = arrays.get("classes", np.arange(count))
    if names.ndim != 1 or names.dtype.kind not in "Uiu" or len(names) < count or len(np.unique(names)) < len(names):
        raise PskdError(f"classes must be a list of different names, one for each of the {count} labels")
    counts = labels.bincount(minlength=len(names))
    if len(counts) < 2:
        raise PskdError("train_labels name one class only, there must be at least two")
    if not counts.all():
        raise PskdError(f"class {int(counts.argmin())} of 0..{len(counts) - 1} has no training image")
    for name, (other_images, other_labels) in splits.items():
        if other_images.shape[1:] != images.shape[1:]:
            raise PskdError(f"{name}_images and train_images differ in size or channels")
        if other_labels.max() >= len(counts):
            raise PskdError(
                f"{name}_labels has class {int(other_labels.max())}, train_labels only 0..{len(counts) - 1}"
            )
    return tuple(map(str, names))
