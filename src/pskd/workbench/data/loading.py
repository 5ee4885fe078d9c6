"""Worker processes that open the images of batches ahead of the training."""

from __future__ import annotations

import os
import signal
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from pskd.errors import PskdError
from pskd.workbench.data.pictures import Picture

if TYPE_CHECKING:
    from pskd.workbench.data.splits import Opened

AHEAD = 2  # batches that each worker has made, or has at hand


class Augment(Protocol):
    """What happens to training images: a pure function of (seed, epoch, sample); see ``pskd.workbench.augment``."""

    def open(
        self, pictures: Sequence[Picture], index: Tensor, *, seed: int, epoch: int, out: Tensor | None = None
    ) -> Tensor: ...

    def __call__(
        self,
        images: Tensor,
        index: Tensor,
        *,
        seed: int,
        epoch: int,
        opened: bool = False,
        out: Tensor | None = None,
    ) -> Tensor: ...


@dataclass(frozen=True)
class Kind:
    """What a set of workers was made for."""

    augment: Augment | None
    seed: int
    workers: int
    pinned: bool  # batches are copied to memory that an accelerator reads
    slots: int  # batches that are in shared memory at a time, which is used again; 0: each is sent by itself
    largest: int  # samples of a batch


def opened(
    split: Opened, plan: Sequence[Tensor], augment: Augment | None, *, seed: int, epoch: int, workers: int, pinned: bool
) -> Iterator[Tensor]:
    """(B, C, H, W) uint8 for each (B,) tensor of sample numbers; each counts until the next one is asked for."""
    workers = min(workers, len(plan))
    slots = min(AHEAD * workers + 1, len(plan)) if workers and augment is not None and not pinned else 0
    kind = Kind(augment, seed, workers, pinned, slots, max(map(len, plan), default=0))
    idle = _IDLE.setdefault(split, [])
    found = next((each for each in idle if each.kind == kind), None)
    idle[:] = [] if augment is not None and workers and found is None else [each for each in idle if each is not found]
    used = _Workers(split, kind) if found is None else found
    left = len(plan)
    try:
        for images in used.images(plan, epoch):
            left -= 1
            yield images
    finally:
        # Training comes back for the next epoch, which then need not start processes and map memory anew.
        if not left and split.lasting and workers and augment is not None:
            idle.append(used)


class _Workers:
    def __init__(self, split: Opened, kind: Kind) -> None:
        self.kind = kind
        self._slots: Tensor | None = None
        if kind.slots:
            # While one batch is used here, workers write others. Memory that is mapped once saves the pages of each
            # batch in either process.
            shape = (kind.slots, kind.largest, split.view.channels, *split.view.size)
            self._slots = torch.empty(shape, dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call]
        self._opening = _Opening(split, kind.augment, kind.seed, self._slots)
        self._tasks: list[_Task] = []
        self._loader = DataLoader(
            self._opening,
            sampler=self._tasks,
            batch_size=None,
            num_workers=kind.workers,
            prefetch_factor=AHEAD if kind.workers else None,
            persistent_workers=kind.workers > 0,
            pin_memory=kind.pinned,
            worker_init_fn=shield_from_signals,
            # Without its own generator each loader would take a number from torch's global one, and a run that was
            # resumed within an epoch would go on with other random numbers than an undisturbed one.
            generator=torch.Generator(),
        )

    def images(self, plan: Sequence[Tensor], epoch: int) -> Iterator[Tensor]:
        self._tasks[:] = [(epoch, step, index.numpy()) for step, index in enumerate(plan)]
        made = iter(self._loader)
        if self.kind.workers:
            self._opening.split = None  # they have theirs: so these go when the split goes, and not the other way round
        for step, images in enumerate(made):
            if isinstance(images, str):
                raise PskdError(images)
            yield images if self._slots is None else self._slots[step % len(self._slots), : len(plan[step])]


_IDLE: weakref.WeakKeyDictionary[Opened, list[_Workers]] = weakref.WeakKeyDictionary()
_Task = tuple[int, int, np.ndarray]  # epoch, step, sample numbers


@dataclass
class _Opening(Dataset[Tensor | str | None]):
    """The images of a task; None: they are in its slot; or what is wrong with one of the files.

    An exception of a worker process would arrive with the worker's traceback in its message; a string arrives as it is.
    """

    split: Opened | None
    augment: Augment | None
    seed: int
    slots: Tensor | None

    def __getitem__(self, task: _Task) -> Tensor | str | None:
        assert self.split is not None
        epoch, step, samples = task
        index, view, together = torch.from_numpy(samples), self.split.view, self.split.together
        if self.slots is None:
            images = torch.empty(len(index), view.channels, *view.size, dtype=torch.uint8)
        else:
            images = self.slots[step % len(self.slots), : len(index)]
        try:
            for own, out in zip(torch.split(index, together), torch.split(images, together), strict=True):
                self._open(own, out, epoch)
        except PskdError as error:
            return str(error)
        return images if self.slots is None else None

    def _open(self, index: Tensor, out: Tensor, epoch: int) -> None:
        assert self.split is not None
        if self.augment is None:
            for place, sample in zip(out, index.tolist(), strict=True):
                place.copy_(self.split.pixels(sample))
        else:
            pictures = [self.split.picture(sample) for sample in index.tolist()]
            self.augment.open(pictures, index, seed=self.seed, epoch=epoch, out=out)


def shield_from_signals(_worker: int) -> None:
    """Ctrl-C and a job's end are sent to the whole process group: only the main process shall answer them.

    It still needs its workers for the step it finishes before it saves, and ends them itself; they notice when it dies.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(os, "setpgrp"):
        os.setpgrp()
