"""Every training sample carries its index; and a data set has a fingerprint, so that stored rows stay its own."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset


class Indexed(Dataset[Any]):
    """``dataset`` with the index of each sample behind it: ``(x, y)`` becomes ``(x, y, index)``.

    A sample that is a mapping gets the key "index"; any other single object becomes a pair.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        index = index + len(self) if index < 0 else index
        sample = self.dataset[index]
        if isinstance(sample, Mapping):
            return {**sample, "index": index}
        return (*sample, index) if isinstance(sample, tuple | list) else (sample, index)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of each sample's identity, in order: see ``fingerprint``."""
        return fingerprint(self.dataset)


def fingerprint(dataset: Any) -> str:
    """A hash over what identifies each sample, in order.

    Relative path, size and label for files; bytes for tensors and arrays; text for sentences. A data set that shows
    none of these is known by its type and length only.
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in _identity(dataset):
        digest.update(part)
        digest.update(b"\0")
    return digest.hexdigest()


def _identity(dataset: Any) -> Sequence[bytes]:
    if isinstance(dataset, Subset):
        return [fingerprint(dataset.dataset).encode(), _raw(torch.as_tensor(dataset.indices))]
    if isinstance(dataset, ConcatDataset):
        return [fingerprint(part).encode() for part in dataset.datasets]
    if isinstance(own := getattr(dataset, "fingerprint", None), str):
        return [own.encode()]
    if isinstance(dataset, TensorDataset):
        return [_raw(tensor) for tensor in dataset.tensors]
    if isinstance(files := getattr(dataset, "samples", None), list):  # torchvision's DatasetFolder
        return [
            f"{Path(path).relative_to(dataset.root)}|{Path(path).stat().st_size}|{label}".encode()
            for path, label in files
        ]
    if hasattr(dataset, "data") and hasattr(dataset, "targets"):  # torchvision's data sets in memory
        return [_raw(dataset.data), _raw(dataset.targets)]
    if isinstance(dataset, list | tuple) and all(isinstance(sample, str) for sample in dataset):
        return [sample.encode() for sample in dataset]
    return [type(dataset).__name__.encode(), str(len(dataset)).encode()]


def _raw(values: Any) -> bytes:
    array = values.detach().cpu().contiguous().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)
    return f"{array.dtype}{array.shape}".encode() + np.ascontiguousarray(array).tobytes()
