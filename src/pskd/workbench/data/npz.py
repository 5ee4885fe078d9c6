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
from pskd.workbench.data.reason import place
from pskd.workbench.reading import read_npz

MOST_CLASSES = 10_000_000


@registry.data.register("npz")
def load_npz(root: str | Path | None = None) -> ImageData:
    """Images (N, H, W), (N, H, W, 1) or (N, H, W, 3) of uint8; labels (N,) or (N, 1) of any integer type, from 0."""
    root = place("npz", root, "file")
    arrays = _read(root)
    names = ["train", "test", *(["val"] if {"val_images", "val_labels"} & arrays.keys() else [])]
    splits = {name: _split(root, arrays, name) for name in names}

    images, labels = splits["train"]
    classes = _classes(root, arrays, int(labels.max()) + 1)
    counts = labels.bincount(minlength=len(classes))
    if len(counts) < 2:
        raise PskdError(f"'{root}': train_labels name one class only, there must be at least two")
    if not counts.all():
        raise PskdError(f"'{root}': class {int(counts.argmin())} of 0..{len(counts) - 1} has no training image")
    for name, (other_images, other_labels) in splits.items():
        if other_images.shape[1:] != images.shape[1:]:
            raise PskdError(f"'{root}': {name}_images and train_images differ in size or channels")
        if other_labels.max() >= len(counts):
            raise PskdError(
                f"'{root}': {name}_labels has class {int(other_labels.max())}, train_labels only 0..{len(counts) - 1}"
            )
    return in_memory("npz", classes, train=splits["train"], test=splits["test"], val=splits.get("val"))


def _read(file: Path) -> dict[str, np.ndarray]:
    if not file.exists():
        raise PskdError(f"there is no file '{file}': name the .npz file with data.root=...")
    try:
        return read_npz(file)
    except PskdError as error:
        raise PskdError(f"cannot read '{file}' ({error}): name an .npz file with data.root=...") from error


def _classes(file: Path, arrays: dict[str, np.ndarray], count: int) -> tuple[str, ...]:
    names = arrays.get("classes", np.arange(count))
    if names.ndim != 1 or names.dtype.kind not in "Uiu" or len(names) < count or len(np.unique(names)) < len(names):
        raise PskdError(f"'{file}': classes must be a list of different names, one for each of the {count} labels")
    return tuple(map(str, names))


def _split(file: Path, arrays: dict[str, np.ndarray], name: str) -> tuple[Tensor, Tensor]:
    for key in (f"{name}_images", f"{name}_labels"):
        if key not in arrays:
            raise PskdError(f"'{file}' has no array '{key}', only {', '.join(sorted(arrays)) or 'none'}")
    images, labels = arrays[f"{name}_images"], arrays[f"{name}_labels"]
    if images.dtype != np.uint8:
        raise PskdError(f"'{file}': {name}_images is {images.dtype}, but pixels must be uint8 in 0..255")
    if images.ndim not in (3, 4) or (images.ndim == 4 and images.shape[3] not in (1, 3)) or 0 in images.shape:
        raise PskdError(f"'{file}': {name}_images has shape {images.shape}, not (N, H, W) or (N, H, W, 3)")
    if labels.dtype.kind not in "iu":
        raise PskdError(f"'{file}': {name}_labels is {labels.dtype}, but labels must be integers")
    if labels.shape not in ((len(images),), (len(images), 1)):
        raise PskdError(f"'{file}': {name}_labels has shape {labels.shape}, not one label for each image")
    if labels.max() >= MOST_CLASSES:
        raise PskdError(
            f"'{file}': {name}_labels has the label {labels.max()}, the largest allowed is {MOST_CLASSES - 1}"
        )
    if labels.min() < 0:
        raise PskdError(f"'{file}': {name}_labels has the negative label {labels.min()}, classes count from 0")
    pixels = torch.from_numpy(images.reshape(*images.shape[:3], -1)).permute(0, 3, 1, 2).contiguous()
    return pixels, torch.from_numpy(labels.reshape(-1).astype(np.int64))
