"""`data.cache`: the images of a data set, decoded once and kept for all epochs and runs."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from pskd.errors import PskdError
from pskd.workbench.data.image_data import ImageData
from pskd.workbench.data.loading import shield_from_signals
from pskd.workbench.data.pictures import FromSource, Resizing
from pskd.workbench.data.prepared import Preparation, Prepared
from pskd.workbench.data.splits import InMemory, Opened, Split
from pskd.workbench.data.store import Entries, Store, check_space
from pskd.workbench.data.view import View
from pskd.workbench.space import shown

AUTO = "auto"
VERSION = 1  # of what is kept; another one has another folder
BATCH = 32  # images that a worker decodes at a time
LOOKED_AT = 64  # images whose size is asked before the disk is filled


@dataclass(frozen=True)
class Caching:
    """How images are prepared, and where they are kept.

    Args:
        name, root: of the data set, as it was loaded.
        cache: a folder, "auto" for one of this user's, or None: nothing is kept.
        shrink: pixels of the shorter side that images are scaled to before crops are taken; "auto" is what evaluation
            scales them to, unless the model's input is so small that every pixel counts; None: they stay as they are.
        resizing: what scales crops to the model's input.
    """

    name: str
    root: str | None = None
    cache: str | None = None
    shrink: int | Literal["auto"] | None = None
    resizing: Resizing = "pillow"

    def changes(self) -> bool:
        """Whether anything has to be done at all."""
        return self.cache is not None or self.shrink is not None or self.resizing != "pillow"

    def of(self, data: ImageData, workers: int, say: Callable[[str], None]) -> ImageData:
        """The data set for training: images that are not kept yet are, by this process or by another one first."""
        if not self.changes():
            return data
        splits = {"train": data.train, "val": data.val, "test": data.test}
        there = [self._opened(split) for split in splits.values() if split is not None]
        store = None
        if self.cache is not None:
            store = Store(self.folder(data.view), self._about(data.view))
            build(store, there, self._preparation(data.view), workers, say)
        prepared: dict[str, Any] = {
            name: None if split is None else self._prepared(self._opened(split), store)
            for name, split in splits.items()
        }
        return replace(data, **prepared)

    def seen(self, split: Split) -> Split:
        """A split for evaluation, out of what is kept of it; nothing is added."""
        if self.cache is None or isinstance(split, InMemory) or not (self.folder(split.view) / "about.json").is_file():
            return split
        return self._prepared(split, Store(self.folder(split.view), self._about(split.view)))

    def folder(self, view: View) -> Path:
        """Where images that are prepared in this way are kept: another data set, size or release has another folder."""
        assert self.cache is not None
        if self.cache == AUTO:
            place = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "pskd"
        else:
            place = Path(self.cache).expanduser()
        mark = hashlib.blake2b(repr(sorted(self._about(view).items())).encode(), digest_size=6).hexdigest()
        return place / f"{''.join(c if c.isalnum() else '-' for c in self.name)}-{mark}"

    def _about(self, view: View) -> dict[str, Any]:
        return {
            "version": VERSION,
            "data": self.name,
            "root": None if self.root is None else str(Path(self.root).expanduser().resolve()),
            "channels": view.channels,
            "as_stored": view.as_stored,
            "size": list(view.size),
            "resize": view.resize,
            "side": self._preparation(view).side,
        }

    def _preparation(self, view: View) -> Preparation:
        return Preparation(view.resize if self.shrink == AUTO else self.shrink, self.resizing)  # type: ignore[arg-type]

    def _opened(self, split: Split) -> Opened:
        if isinstance(split, InMemory):
            what = (
                "data.cache" if self.cache is not None else "data.shrink" if self.shrink is not None else "data.resize"
            )
            raise PskdError(f"{what}: the images of '{self.name}' are in memory as they are, leave it out")
        return split

    def _prepared(self, split: Opened, store: Store | None) -> Prepared:
        places = None if store is None else store.places(keys_of(split))
        return Prepared(split, self._preparation(split.view), store, places)


def build(
    store: Store, splits: Sequence[Opened], preparation: Preparation, workers: int, say: Callable[[str], None]
) -> None:
    """Add what is missing of the splits. Of several processes one does it, and the others wait."""
    keys = np.concatenate([keys_of(split) for split in splits])
    if not (store.places(keys) < 0).any():
        return
    with store.adding() as adding:
        _, once = np.unique(keys, axis=0, return_index=True)
        missing = np.sort(once[store.places(keys[once]) < 0])
        if not len(missing):
            return  # another process was faster
        ends = np.cumsum([len(split) for split in splits])
        todo = _Making(splits, ends, missing, preparation)
        needed = todo.bytes_of_some() * len(missing)
        what = f"{len(missing):,} images" + (f" of {len(once):,}" if len(missing) < len(once) else "")
        check_space(store.folder, needed, what)
        say(f"data.cache: decoding {what} into {store.folder}, about {shown(needed)}")
        loader = DataLoader(
            todo,
            batch_size=None,
            num_workers=min(workers, len(todo)),
            worker_init_fn=shield_from_signals,
            generator=torch.Generator(),
        )
        for batch, made in enumerate(loader):
            if isinstance(made, str):
                raise PskdError(made)
            adding.add(keys[missing[batch * BATCH : (batch + 1) * BATCH]], made)


def keys_of(split: Opened) -> np.ndarray:
    """What tells an image from all others, and from itself after a change: (N, 2) uint64."""
    identities = split.identities()
    if identities is None:
        raise PskdError("data.cache: these images may be others each time, only files and hf: data can be kept")
    digests = b"".join(hashlib.blake2b(each, digest_size=16).digest() for each in identities)
    return np.frombuffer(digests, "<u8").reshape(-1, 2)


@dataclass(frozen=True)
class _Making(Dataset[Entries | str]):
    """Item i is the i-th batch of the missing images, or what is wrong with one of them."""

    splits: Sequence[Opened]
    ends: np.ndarray
    missing: np.ndarray
    preparation: Preparation

    def __len__(self) -> int:
        return -(-len(self.missing) // BATCH)

    def __getitem__(self, batch: int) -> Entries | str:
        made = []
        try:
            for which in self.missing[batch * BATCH : (batch + 1) * BATCH]:
                picture = self._picture(which)
                made.append(self.preparation.made(picture.decoded(), picture.view))
        except PskdError as error:
            return str(error)
        # One tensor, which reaches the main process in shared memory.
        pixels = torch.from_numpy(np.concatenate([entry.pixels.reshape(-1) for entry in made]))
        return Entries(pixels, torch.tensor([(*entry.pixels.shape[:2], entry.kind) for entry in made]))

    def _picture(self, which: int) -> FromSource:
        number = int(np.searchsorted(self.ends, which, side="right"))
        split = self.splits[number]
        return FromSource(split.source(int(which - self.ends[number] + len(split))), split.view)

    def bytes_of_some(self) -> float:
        """The mean size of a kept image, by the sizes of some."""
        total = []
        for which in self.missing[:: -(-len(self.missing) // LOOKED_AT)]:
            picture = self._picture(which)
            (width, height), _ = self.preparation.size_and_kind(picture.size[::-1], picture.view)
            total.append(width * height * picture.view.channels)
        return float(np.mean(total))
