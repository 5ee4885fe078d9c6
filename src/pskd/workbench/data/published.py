"""CIFAR-10, CIFAR-100 and Fashion-MNIST in their published files, packed or unpacked."""

from __future__ import annotations

import contextlib
import gzip
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pskd.errors import PskdError
from pskd.workbench import registry
from pskd.workbench.data.image_data import ImageData, in_memory
from pskd.workbench.data.refusing import refusing, require_root

Statistics = tuple[tuple[float, ...], tuple[float, ...]]
# The deviations are those of the paper's code. So are the means, but for its CIFAR-10, where green has 0.4824 and blue
# 0.4467; much of the literature takes its values of CIFAR-100 for both sets.
CIFAR10_STATISTICS = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
CIFAR100_STATISTICS = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
FASHION_FOLDERS = ("FashionMNIST/raw", "FashionMNIST", "raw", ".")
_UNSIGNED_BYTES = 8  # the type of an idx file's numbers


@registry.data.register("cifar10", "CIFAR-10")
def load_cifar10(root: str | Path | None = None, download: bool = False) -> ImageData:
    from torchvision import datasets

    return _cifar("cifar10", datasets.CIFAR10, root, download, CIFAR10_STATISTICS)


@registry.data.register("cifar100", "CIFAR-100")
def load_cifar100(root: str | Path | None = None, download: bool = False) -> ImageData:
    """With its fine classes."""
    from torchvision import datasets

    return _cifar("cifar100", datasets.CIFAR100, root, download, CIFAR100_STATISTICS)


@registry.data.register("fashion_mnist", "Fashion-MNIST")
def load_fashion_mnist(root: str | Path | None = None, download: bool = False) -> ImageData:
    from torchvision.datasets import FashionMNIST

    folder = require_root("fashion_mnist", root)
    if download:
        _fetch("fashion_mnist", lambda: FashionMNIST(folder, download=True), folder)
    splits = {}
    for split, part in (("train", "train"), ("test", "t10k")):
        images, labels = (_idx_file(folder, f"{part}-{what}-ubyte") for what in ("images-idx3", "labels-idx1"))
        if images.ndim != 3 or labels.shape != images.shape[:1]:
            raise PskdError(f"'fashion_mnist' in '{folder}': the {part} files are not images and a label for each")
        splits[split] = images[:, None], labels.long()
    return in_memory("fashion_mnist", tuple(FashionMNIST.classes), train=splits["train"], test=splits["test"])


def _cifar(name: str, published: Any, root: str | Path | None, download: bool, statistics: Statistics) -> ImageData:
    folder = require_root(name, root)
    if download:
        _fetch(name, lambda: published(folder, download=True), folder)
    files = [file for file, _ in (*published.train_list, *published.test_list)] + [published.meta["filename"]]
    unpacked = next((at for at in (folder / published.base_folder, folder) if (at / files[0]).is_file()), None)
    archive = folder if folder.is_file() else folder / published.filename
    if unpacked is None and not archive.is_file():
        raise _missing(name, folder, f"{published.base_folder}/{files[0]}, {files[0]} and {published.filename}")
    here = type(published.__name__, (published,), {"base_folder": ""})
    with tempfile.TemporaryDirectory() as temporary:
        if unpacked is None:
            _unpack(archive, f"{published.base_folder}/", files, Path(temporary))
        # torchvision checks the files, which are pickles, against their published MD5 before it opens them. It has no
        # common class for its errors.
        with refusing(
            f"'{name}' in '{unpacked or archive}' is incomplete or damaged", "put the published files there", Exception
        ):
            train, test = (here(unpacked or temporary, train=train) for train in (True, False))

    def tensors(split: Any) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(split.data).permute(0, 3, 1, 2).contiguous(), torch.tensor(split.targets)

    return in_memory(name, tuple(train.classes), train=tensors(train), test=tensors(test), statistics=statistics)


def _unpack(archive: Path, inside: str, files: list[str], to: Path) -> None:
    """Copy ``files`` out of an archive; nothing else of it is looked at."""
    errors = (OSError, EOFError, KeyError, tarfile.TarError)
    with (
        refusing(f"cannot read '{archive}'", "put the published archive there", *errors),
        tarfile.open(archive) as packed,
    ):
        for file in files:
            content = packed.extractfile(inside + file)
            if content is not None:
                (to / file).write_bytes(content.read())


def _idx_file(root: Path, name: str) -> Tensor:
    """The array of an idx file, as it is or compressed: uint8 of any shape."""
    places = [root / folder / f"{name}{suffix}" for folder in FASHION_FOLDERS for suffix in ("", ".gz")]
    path = next((path for path in places if path.is_file()), None)
    if path is None:
        raise _missing("fashion_mnist", root, f"{name} and {name}.gz, there and in {', '.join(FASHION_FOLDERS[:-1])}")
    errors = (OSError, EOFError, ValueError, IndexError)
    with refusing(f"'fashion_mnist': cannot read '{path}'", "put the published file there", *errors):
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        dimensions = content[3]
        shape = np.frombuffer(content, ">i4", dimensions, offset=4)
        if content[:3] != bytes((0, 0, _UNSIGNED_BYTES)):
            raise ValueError("it is no idx file of bytes")
        return torch.from_numpy(np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape).copy())


def _missing(name: str, root: Path, looked_for: str) -> PskdError:
    return PskdError(
        f"no '{name}' in '{root}' (looked for {looked_for}): name the folder that holds it with data.root=..., "
        "or fetch it with data.download=true"
    )


def _fetch(name: str, download: Callable[[], object], root: Path) -> None:
    """One process at a time: of a study's workers the first downloads, the others use its files."""
    with (
        refusing(f"'{name}' could not be downloaded to '{root}'", "check the network and the disk", Exception),
        contextlib.ExitStack() as stack,
    ):
        with contextlib.suppress(ImportError, OSError):  # Windows, a folder to read only, no locks on its disk
            import fcntl

            root.mkdir(parents=True, exist_ok=True)
            fcntl.flock(stack.enter_context(open(root / ".downloading", "ab")), fcntl.LOCK_EX)
        download()
