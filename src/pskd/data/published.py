"""CIFAR-10, CIFAR-100 and Fashion-MNIST in their published files, read by torchvision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pskd import registry
from pskd.data.image_data import ImageData, in_memory
from pskd.data.reason import place, reason
from pskd.errors import PskdError

Statistics = tuple[tuple[float, ...], tuple[float, ...]]
# The constants of the paper's code; those for CIFAR-100 are what much of the literature takes for both sets.
CIFAR10_STATISTICS = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
CIFAR100_STATISTICS = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)


@registry.data.register("cifar10")
def load_cifar10(root: str | Path | None = None, download: bool = False) -> ImageData:
    from torchvision import datasets

    return _cifar("cifar10", datasets.CIFAR10, root, download, CIFAR10_STATISTICS)


@registry.data.register("cifar100")
def load_cifar100(root: str | Path | None = None, download: bool = False) -> ImageData:
    """With its fine classes."""
    from torchvision import datasets

    return _cifar("cifar100", datasets.CIFAR100, root, download, CIFAR100_STATISTICS)


def _cifar(name: str, published: Any, root: str | Path | None, download: bool, statistics: Statistics) -> ImageData:
    folder = place(name, root)
    train, test = (_read(name, published, folder, train, download) for train in (True, False))

    def tensors(split: Any) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(split.data).permute(0, 3, 1, 2).contiguous(), torch.tensor(split.targets)

    return in_memory(name, tuple(train.classes), train=tensors(train), test=tensors(test), statistics=statistics)


@registry.data.register("fashion_mnist")
def load_fashion_mnist(root: str | Path | None = None, download: bool = False) -> ImageData:
    from torchvision import datasets

    folder = place("fashion_mnist", root)
    train, test = (_read("fashion_mnist", datasets.FashionMNIST, folder, train, download) for train in (True, False))
    splits = {"train": (train.data[:, None], train.targets), "test": (test.data[:, None], test.targets)}
    return in_memory("fashion_mnist", tuple(train.classes), **splits)


def _read(name: str, published: Any, root: Path, train: bool, download: bool) -> Any:
    """torchvision's data set. It checks the CIFAR files, which are pickles, against their published MD5 first."""
    try:
        return published(root, train=train, download=download)
    except Exception as error:  # no network, a damaged archive, a full disk: torchvision has no common class for them
        if download:
            raise PskdError(f"'{name}' could not be downloaded to '{root}': {reason(error)}") from error
        raise PskdError(
            f"'{name}' is missing or damaged in '{root}': name the folder that holds it with data.root=..., "
            "or fetch it with data.download=true"
        ) from error
