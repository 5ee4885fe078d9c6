"""Data sets: what they are, where they come from, and how they are split.

An image data set is a function ``(root=None, **options)`` that is registered by its name, or a user's own named
`module:function`. It returns an ``ImageData``, or a dictionary of map-style data sets (``items.py``).
"""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any

from pskd.errors import PskdError
from pskd.workbench import registry
from pskd.workbench.data import subsets
from pskd.workbench.data.image_data import ImageData
from pskd.workbench.data.items import from_datasets
from pskd.workbench.data.splits import Batch, InMemory, OnDisk, Split
from pskd.workbench.data.view import View

__all__ = ["Batch", "ImageData", "InMemory", "OnDisk", "Split", "View", "load"]


def load(
    name: str,
    *,
    root: str | os.PathLike[str] | None = None,
    val_fraction: float = 0.0,
    seed: int = 0,
    image_size: int | None = None,
    num_classes: int | None = None,
    per_class: int | None = None,
    noise: float = 0.0,
    at_most: bool = False,
    **options: Any,
) -> ImageData:
    """Load a data set.

    Args:
        name: a registered one (``registry.data.names()``), or code of the user's own that was loaded.
        root: the folder that holds the published files or the class folders; for ``npz`` the file. ``digits`` has none.
        val_fraction: the part of the training samples that becomes the validation split, drawn after ``per_class``.
        seed: of ``val_fraction``, ``per_class`` and ``noise``; the test set never depends on it.
        image_size: the side of the model's input: 224 for data whose images differ in size (imagenet, folder); others
            are as they were published, or made smaller.
        num_classes: keep the first so many classes only.
        per_class: keep so many training samples of each class only.
        noise: the part of the training labels that is replaced by another class; the other splits keep theirs.
        at_most: ``num_classes`` and ``per_class`` are upper bounds, and data that has less is taken as it is; otherwise
            it is refused.
        **options: the data set's own, such as ``download``; one that it does not have is refused unless it is off.
    """
    loader = registry.data.find(name)
    taken = inspect.signature(loader).parameters
    anything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken.values())
    for option, value in options.items():
        if value and option not in taken and not anything:
            if option == "download":
                raise PskdError(f"data.download=true: '{name}' cannot be downloaded, name the data with data.root=...")
            raise PskdError(f"data.{option}={value}: '{name}' has no such option")
    given = {option: value for option, value in options.items() if option in taken or (anything and value is not None)}
    if "name" in taken:
        given["name"] = name  # which of a library's it is
    sized = "image_size" in taken
    if sized:
        given["image_size"] = image_size
    place = None if root is None else str(Path(root).expanduser())
    found = loader(root=place, **given)
    data = found if isinstance(found, ImageData) else from_datasets(name, found, image_size)
    if image_size is not None and not sized and isinstance(data.train, InMemory):
        data = subsets.smaller(data, image_size)
    if num_classes is not None:
        data = subsets.first_classes(data, min(num_classes, len(data.classes)) if at_most else num_classes)
    if per_class is not None:
        data = subsets.few_per_class(data, per_class, seed, at_most=at_most)
    if val_fraction:
        data = subsets.hold_out(data, val_fraction, seed)
    if noise:
        data = subsets.mislabelled(data, noise, seed)
    return data
