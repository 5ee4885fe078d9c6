"""Whether images of one split are those of another, whatever their files are called."""

from __future__ import annotations

import hashlib

import torch

from pskd.workbench.data.splits import InMemory, OnDisk, Split

LOOKED_AT = 200  # of a split's images, evenly spread


def share_inside(samples: Split, others: Split) -> float:
    """The share of the samples whose image is byte for byte one of the others; some of them are looked at.

    Images that are neither in memory nor files of their own cannot be compared: 0.
    """
    places = torch.linspace(0, len(samples) - 1, min(LOOKED_AT, len(samples))).long().tolist()
    if isinstance(samples, InMemory) and isinstance(others, InMemory):
        wanted = [_digest(samples.images[place].numpy().tobytes()) for place in places]
        there = {_digest(image.tobytes()) for image in others.images.numpy()}
    elif isinstance(samples, OnDisk) and isinstance(others, OnDisk):
        paths = [samples.source(place) for place in places]
        sizes = {path.stat().st_size for path in paths}
        # Only files of the same size are read: of photos, hardly one.
        alike = [path for path in map(others.source, range(len(others))) if path.stat().st_size in sizes]
        wanted, there = [_digest(path.read_bytes()) for path in paths], {_digest(path.read_bytes()) for path in alike}
    else:
        return 0.0
    return sum(each in there for each in wanted) / max(1, len(wanted))


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()
