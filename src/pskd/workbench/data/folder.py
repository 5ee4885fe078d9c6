"""Image files in class folders: a user's own data, and ImageNet."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path

import torch

from pskd.errors import PskdError
from pskd.workbench import registry
from pskd.workbench.data.image_data import ImageData
from pskd.workbench.data.refusing import refusing, require_root
from pskd.workbench.data.splits import OnDisk
from pskd.workbench.data.view import View

# ImageNet's; pretrained models expect them, and they save a pass over all files.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
IMAGE_SIZE = 224


@registry.data.register("folder")
def load_folder(root: str | Path | None = None, image_size: int | None = None, as_stored: bool = False) -> ImageData:
    """``root``/train, ``root``/test and, if there is one, ``root``/val, each with one folder of images per class."""
    root = require_root("folder", root)
    if not (root / "test").is_dir() and (root / "val").is_dir():
        raise PskdError(
            f"'{root}' has a val but no test folder: rename val to test if results are to be reported on it "
            "(the best epoch is chosen on val, so it cannot be both)"
        )
    return _load("folder", root, {"train": "train", "val": "val", "test": "test"}, image_size, as_stored)


@registry.data.register("imagenet", "ImageNet")
def load_imagenet(root: str | Path | None = None, image_size: int | None = None, as_stored: bool = False) -> ImageData:
    """ILSVRC2012 in train and val folders of class folders, or as the published archives, which are unpacked first.

    Its validation images are the test split. Classes are named by their WordNet numbers.
    """
    root = require_root("imagenet", root)
    if not ((root / "train").is_dir() and (root / "val").is_dir()):
        from torchvision import datasets

        advice = "data.root=... must name the folder that holds train and val, or the three ILSVRC2012 archives"
        with refusing(f"no ImageNet in '{root}'", advice, RuntimeError, OSError):
            for split in ("train", "val"):
                datasets.ImageNet(root, split)
    return _load("imagenet", root, {"train": "train", "test": "val"}, image_size, as_stored)


def _load(name: str, root: Path, folders: dict[str, str], image_size: int | None, as_stored: bool) -> ImageData:
    """``folders``: the folder of each split; that of ``val`` may be missing."""
    view = photo_view(image_size, as_stored)
    files = {
        split: _images_by_class(root, folder)
        for split, folder in folders.items()
        if split != "val" or (root / folder).is_dir()
    }
    classes = tuple(files["train"])
    if len(classes) < 2:
        raise PskdError(f"'{root / folders['train']}' holds one class, '{classes[0]}': there must be at least two")
    splits = {}
    for split, by_class in files.items():
        for first, second in (("train", split), (split, "train")):
            missing = [label for label in files[first] if label not in files[second]]
            if missing:
                raise PskdError(
                    f"class '{missing[0]}' is in '{root / folders[first]}' but not in '{root / folders[second]}': "
                    "all splits must have the same class folders"
                )
        sizes = torch.tensor([len(paths) for paths in by_class.values()])
        paths = tuple(path for paths in by_class.values() for path in paths)
        splits[split] = OnDisk(paths, torch.arange(len(classes)).repeat_interleave(sizes), root, view)
    return ImageData(name, classes, splits["train"], splits.get("val"), splits["test"], view)


def photo_view(image_size: int | None, as_stored: bool = False) -> View:
    """What a model sees of photos of any size."""
    if image_size is not None and image_size < 1:
        raise PskdError(f"data.image_size={image_size}: give the side of the model's input in pixels")
    image_size = image_size or IMAGE_SIZE
    # Photos are evaluated as the field does it, 224 out of 256; of small images every pixel counts.
    resize = round(image_size * 256 / 224) if image_size > 64 else None
    return View(3, (image_size, image_size), resize, MEAN, STD, as_stored)


def _images_by_class(root: Path, split: str) -> dict[str, list[str]]:
    """The image files, relative to ``root``, of every class folder of a split; both in alphabetical order."""
    folder = root / split
    if not folder.is_dir():
        raise PskdError(f"there is no folder '{folder}': data.root=... must name the folder that holds '{split}'")
    by_class = {}
    with refusing(None, "make it readable, or remove it", OSError):
        names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
        for name in names:
            by_class[name] = sorted(
                Path(place, file).relative_to(root).as_posix()
                for place, files in _walk(folder / name, root)
                for file in files
                if is_image(file)
            )
            if not by_class[name]:
                raise PskdError(f"class folder '{folder / name}' holds no image: add some or remove the folder")
    if not by_class:
        raise PskdError(f"'{folder}' holds no class folders: put the images of each class into a folder of its name")
    return by_class


def _walk(folder: Path, root: Path) -> Iterator[tuple[str, list[str]]]:
    """The folders below a class folder, each once, with their files.

    Links are followed out of the data set, but not to a folder that this one is in, nor to another class or split:
    images would count twice, and test images would be learnt.
    """
    own, entered = folder.resolve(), set()
    splits = [(root / split).resolve() for split in ("train", "val", "test")]

    def leads_back(path: Path) -> bool:
        target = path.resolve()
        return own.is_relative_to(target) or any(target.is_relative_to(split) for split in splits)

    for place, below, files in os.walk(folder, followlinks=True, onerror=raise_error):
        entered.add(_identity(place))
        names, below[:] = list(below), []
        for name in names:
            path = Path(place, name)
            if (identity := _identity(path)) not in entered and not (path.is_symlink() and leads_back(path)):
                entered.add(identity)
                below.append(name)
        yield place, files


def _identity(path: str | Path) -> tuple[int, int]:
    stat = os.stat(path)
    return stat.st_dev, stat.st_ino


def raise_error(error: OSError) -> None:
    """For ``os.walk``, which otherwise passes over folders that it cannot read."""
    raise error


def is_image(file: str) -> bool:
    """Whether a file has an ending that Pillow reads, and is not hidden."""
    return os.path.splitext(file)[1].lower() in _suffixes() and not file.startswith(".")


@functools.cache
def _suffixes() -> frozenset[str]:
    from PIL import Image

    return frozenset(suffix for suffix, kind in Image.registered_extensions().items() if kind in Image.OPEN)
