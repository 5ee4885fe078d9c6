"""What tables of samples share: which column is what, classes out of labels, and a test split where none is named."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from pskd.errors import PskdError
from pskd.workbench.data.subsets import drawn_per_class

# What columns and splits are usually called; the first that is there is taken.
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
TEST_SHARE = 0.2  # of each class, where nothing says what the test split is


def column(what: str, wanted: str | None, there: Collection[str], source: str) -> str | None:
    """The column that holds the ``what`` of a sample; None where none was named and none has a usual name."""
    if wanted is None:
        return next((name for name in USUAL[what] if name in there), None)
    if wanted not in there:
        raise PskdError(f"data.{what}={wanted}: {source} has no such column, only {', '.join(there)}")
    return wanted


def needed_column(what: str, wanted: str | None, there: Collection[str], source: str) -> str:
    if (found := column(what, wanted, there, source)) is None:
        raise PskdError(f"{source} has the columns {', '.join(there)}: name that of the {what} with data.{what}=...")
    return found


def split_of(name: str) -> str | None:
    """What a split of this name is to us: train, val or test."""
    return next((split for split, names in SPLITS.items() if name.strip().lower() in names), None)


def classes_of(labels: Sequence[Any], source: str) -> tuple[tuple[str, ...], Tensor]:
    """The class names, numbers by size and text by the alphabet, and each sample's place (N) among them."""
    names = list(map(str, labels))
    different = sorted(set(names), key=lambda name: (0, int(name), name) if _is_number(name) else (1, 0, name))
    if len(different) < 2:
        raise PskdError(f"{source} names {len(different)} classes: there must be at least two")
    place = {name: number for number, name in enumerate(different)}
    return tuple(different), torch.tensor([place[name] for name in names])


def drawn_test(labels: Tensor, num_classes: int) -> Tensor:
    """A mask (N): a fifth of each class, always the same samples, that are kept for the test."""
    counts = labels.bincount(minlength=num_classes)
    return drawn_per_class(labels, (counts * TEST_SHARE).round().long(), seed=0, stream="test split")


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdecimal()
