"""Every training sample carries its index; and a data set has a fingerprint, so that a bank's records stay its own."""

from __future__ import annotations

import hashlib
import operator
import os
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, TensorDataset

from pskd.errors import PskdError

__all__ = ["Indexed"]

_TABLE_ROWS = 1000  # that are looked at together


class Indexed(Dataset[Any]):
    """``dataset`` with the index of each sample behind it: ``(x, y)`` becomes ``(x, y, index)``.

    A sample that is a mapping, such as a row of ``datasets.Dataset``, gets the key "index"; any other single object
    becomes a pair. Attributes of the data set (``classes``, ``transform``) are read and set through it.
    """

    def __init__(self, dataset: Any) -> None:
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
            raise PskdError("dataset: a stream has no indices; use memory=pskd.Snapshot(model), which needs none")
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        try:
            index = operator.index(index)  # also of numpy or torch, one number only
        except TypeError as error:
            raise PskdError(f"index must be one whole number, got {type(index).__name__}") from error
        if index < 0:
            index += len(self)
            if index < 0:
                raise IndexError(f"index {index - len(self)} is out of range for a data set of {len(self)}")
        sample = self.dataset[index]
        if isinstance(sample, Mapping):
            return {**sample, "index": index}
        return (*sample, index) if isinstance(sample, tuple | list) else (sample, index)

    def __getattr__(self, name: str) -> Any:
        # Not the private and special ones: `__getitems__` would fetch samples without their index, and copying and
        # unpickling ask for some before there is a data set.
        if name.startswith("_") or "dataset" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        forwarded = not name.startswith("_") and name != "dataset" and hasattr(self.__dict__.get("dataset"), name)
        if forwarded:
            setattr(self.dataset, name, value)
        else:
            super().__setattr__(name, value)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of each sample's identity, in order: see ``fingerprint``."""
        return fingerprint(self.dataset)


def fingerprint(dataset: Any) -> str:
    """A hash over what identifies each sample, in order.

    Relative path, size and label for files; bytes for tensors and arrays; text for sentences; for ``datasets.Dataset``
    all columns but pictures and sounds, which would have to be read. A data set that shows
    none of these is known by its type and length only; one that has a ``fingerprint`` of its own, by that.
    """
    if isinstance(own := getattr(dataset, "fingerprint", None), str):
        return own
    digest = hashlib.blake2b(digest_size=16)
    for part in _identity(dataset):
        # The length before each part: no two lists of parts run together into the same bytes.
        digest.update(b"%d:" % len(part))
        digest.update(part)
    return digest.hexdigest()


def _identity(dataset: Any) -> Iterator[bytes | memoryview]:
    if isinstance(dataset, Subset):
        yield fingerprint(dataset.dataset).encode()
        yield from _content(torch.as_tensor(dataset.indices))
    elif isinstance(dataset, ConcatDataset):
        for part in dataset.datasets:
            yield fingerprint(part).encode()
    elif isinstance(dataset, TensorDataset):
        yield from _content(dataset.tensors)
    elif isinstance(dataset, list | tuple):
        yield from _content(dataset)
    elif files := _labelled_files(dataset):
        for path, label in files:
            yield f"{os.path.relpath(path, dataset.root)}|{os.path.getsize(path)}|{label}".encode()
    elif hasattr(dataset, "select_columns") and hasattr(dataset, "with_format"):
        yield from _table(dataset)
    elif isinstance(data := getattr(dataset, "data", None), torch.Tensor | np.ndarray):
        yield from _content((data, getattr(dataset, "targets", None), getattr(dataset, "labels", None)))
    else:
        yield from _content((type(dataset).__name__, len(dataset)))


def _labelled_files(dataset: Any) -> list[tuple[str, Any]]:
    """The (path, label) pairs of a data set like torchvision's ``DatasetFolder``, or nothing."""
    files = getattr(dataset, "samples", None)
    if not (isinstance(files, list) and hasattr(dataset, "root")):
        return []
    pairs = all(isinstance(file, tuple) and len(file) == 2 and isinstance(file[0], str) for file in files)
    return files if pairs else []


def _table(dataset: Any) -> Iterator[bytes | memoryview]:
    """The columns of a ``datasets.Dataset``, and the values of those that are no large files."""
    kinds = {name: type(kind).__name__ for name, kind in dataset.features.items()}
    yield from _content((len(dataset), kinds))
    plain = [name for name, kind in kinds.items() if kind not in ("Image", "Audio", "Video", "Pdf", "Nifti")]
    for rows in dataset.select_columns(plain).with_format("arrow").iter(_TABLE_ROWS) if plain else ():
        yield from _content(rows.to_pydict())


def _content(value: Any) -> Iterator[bytes | memoryview]:
    """The bytes of tensors, arrays, text and numbers, also inside of lists and mappings; of other objects the type."""
    if isinstance(value, torch.Tensor):
        yield f"{value.dtype}{tuple(value.shape)}".encode()
        yield value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
    elif isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
        yield f"{value.dtype}{value.shape}".encode()
        yield np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
    elif isinstance(value, Mapping):
        yield from _content(list(value.items()))
    elif isinstance(value, list | tuple):
        yield b"%d items" % len(value)
        for item in value:
            yield from _content(item)
    elif isinstance(value, str | bytes | int | float | None):
        yield f"{type(value).__name__}{value!r}".encode()
    else:
        yield type(value).__name__.encode()
