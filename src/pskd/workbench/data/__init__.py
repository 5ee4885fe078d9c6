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
from pskd.workbench.data.splits import ImageBatch, InMemory, OnDisk, Split
from pskd.workbench.data.view import View

__all__ = ["ImageBatch", "ImageData", "InMemory", "OnDisk", "Split", "View", "load"]


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
        name: a registered one (``registry.data.names()``), or the user's own code, which was loaded.
        root: the folder that holds the published files or the class folders; for ``npz`` the file. ``digits`` has none.
        val_fraction: the part of the training samples that becomes the validation split, drawn after ``per_class``.
        seed: of ``val_fraction``, ``per_class`` and ``noise``; the test set never depends on it.
        image_size: the side of the model's input: 224 for data whose images differ in size (imagenet, folder); others
            are as they were published, or made smaller.
        num_classes: keep only the first classes, this many.
        per_class: keep only this many training samples of each class.
        noise: the part of the training labels that is replaced by another class; the other splits keep theirs.
        at_most: ``num_classes`` and ``per_class`` are upper bounds, so data that has less is not refused.
        **options: the data set's own, such as ``download``; one that it does not have is refused unless it is off.
    """
    loader = registry.data.find(name)
    parameters = inspect.signature(loader).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    for option, value in options.items():
        if value and option not in parameters and not takes_any:
            if option == "download":
                raise PskdError(f"data.download=true: '{name}' cannot be downloaded, name the data with data.root=...")
            raise PskdError(f"data.{option}={value}: '{name}' has no such option")
    # ``name`` says which data set of a library is meant.
    asked = {"name": name, "image_size": image_size, **options}
    given = {key: value for key, value in asked.items() if key in parameters}
    if takes_any:
        given |= {option: value for option, value in options.items() if value is not None}
    result = loader(root=None if root is None else str(Path(root).expanduser()), **given)
    data = result if isinstance(result, ImageData) else from_datasets(name, result, image_size)
    if image_size is not None and "image_size" not in parameters and isinstance(data.train, InMemory):
        data = subsets.shrink_images(data, image_size)
    if num_classes is not None:
        data = subsets.first_classes(data, min(num_classes, len(data.classes)) if at_most else num_classes)
    if per_class is not None:
        data = subsets.limit_per_class(data, per_class, seed, at_most=at_most)
    if val_fraction:
        data = subsets.hold_out(data, val_fraction, seed)
    if noise:
        data = subsets.add_label_noise(data, noise, seed)
    return data
