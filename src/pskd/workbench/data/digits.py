"""The handwritten digits that scikit-learn brings along: 1,797 grey images of 8 x 8 pixels, nothing to download."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from pskd.workbench import registry
from pskd.workbench.data.image_data import ImageData, in_memory
from pskd.workbench.data.refusing import check_no_root
from pskd.workbench.data.subsets import draw_per_class

TEST_FRACTION = 0.2


@registry.data.register("digits")
def load_digits(root: str | None = None) -> ImageData:
    """A fifth of each class, always the same one, is the test set."""
    check_no_root("digits", root)
    table = _read()
    images = torch.from_numpy(table[:, :-1] * (255 / 16)).round().to(torch.uint8).view(-1, 1, 8, 8)
    labels = torch.from_numpy(table[:, -1]).long()
    test = draw_per_class(labels, (labels.bincount() * TEST_FRACTION).round().long(), seed=0, stream="digits")
    classes = tuple(str(digit) for digit in range(10))
    return in_memory("digits", classes, train=(images[~test], labels[~test]), test=(images[test], labels[test]))


def _read() -> np.ndarray:
    """(1797, 65) float64: 64 pixels of 0..16 and the digit. The library is not imported, which would take a second."""
    library = find_spec("sklearn")
    for folder in (library and library.submodule_search_locations) or ():
        file = Path(folder, "datasets", "data", "digits.csv.gz")
        if file.is_file():
            return np.loadtxt(file, delimiter=",")
    from sklearn import datasets

    digits = datasets.load_digits()
    return np.column_stack((digits.data, digits.target))
