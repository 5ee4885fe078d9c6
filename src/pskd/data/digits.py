"""The handwritten digits that scikit-learn brings along: 1,797 grey images of 8 x 8 pixels, nothing to download."""

from __future__ import annotations

import torch

from pskd import registry
from pskd.data.image_data import ImageData, in_memory
from pskd.data.subsets import drawn_per_class

TEST_FRACTION = 0.2


@registry.data.register("digits")
def load_digits(root: str | None = None) -> ImageData:
    """A fifth of each class, always the same one, is the test set."""
    from sklearn import datasets

    digits = datasets.load_digits()
    images = torch.from_numpy(digits.images * (255 / 16)).round().to(torch.uint8)[:, None]
    labels = torch.from_numpy(digits.target).long()
    test = drawn_per_class(labels, (labels.bincount() * TEST_FRACTION).round().long(), seed=0, stream="digits")
    classes = tuple(str(name) for name in digits.target_names)
    return in_memory("digits", classes, train=(images[~test], labels[~test]), test=(images[test], labels[test]))
