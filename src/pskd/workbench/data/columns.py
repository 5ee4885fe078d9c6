"""What tables of samples share: the columns' meaning, classes from labels, and a test split if none is named."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from pskd.errors import PskdError
from pskd.workbench.data.subsets import draw_per_class

# The usual names of columns and splits; of several the first is used.
USUAL = {
    "image": ("image", "img", "path", "file", "file_name", "filename", "image_path"),
    "label": ("label", "class", "labels", "target", "category"),
    "split": ("split",),
}
SPLITS = {
    "train": ("train", "training"),
    "val": ("val", "validation", "valid", "dev"),
    "test": ("test", "testing"),
}
TEST_SHARE = 0.2  # of each class, if no test split is named


def find_column(what: str, wanted: str | None, there: Collection[str], source: str) -> str | None:
    """The column of the images, labels or splits: the one that was ``wanted``, or else one of a usual name, or None."""
    if wanted is None:
        return next((name for name in USUAL[what] if name in there), None)
    if wanted not in there:
        raise PskdError(f"data.{what}={wanted}: {source} has no such column, only {', '.join(there)}")
    return wanted


def require_column(what: str, wanted: str | None, there: Collection[str], source: str) -> str:
    if (name := find_column(what, wanted, there, source)) is None:
        raise PskdError(f"{source} has the columns {', '.join(there)}: name that of the {what} with data.{what}=...")
    return name


def split_of(name: str) -> str | None:
    """Which of our splits, train, val or test, a name means."""
    return next((split for split, names in SPLITS.items() if name.strip().lower() in names), None)


def classes_of(labels: Sequence[Any], source: str) -> tuple[tuple[str, ...], Tensor]:
    """The class names, sorted as numbers, then as text, and each sample's label (N)."""
    names = list(map(str, labels))
    different = sorted(set(names), key=lambda name: (0, int(name), name) if _is_number(name) else (1, 0, name))
    if len(different) < 2:
        raise PskdError(f"{source} names {len(different)} classes: there must be at least two")
    place = {name: number for number, name in enumerate(different)}
    return tuple(different), torch.tensor([place[name] for name in names])


def draw_test(labels: Tensor, num_classes: int) -> Tensor:
    """A mask (N) of the test samples: a fifth of each class, always the same."""
    counts = labels.bincount(minlength=num_classes)
    return draw_per_class(labels, (counts * TEST_SHARE).round().long(), seed=0, stream="test split")


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdecimal()
