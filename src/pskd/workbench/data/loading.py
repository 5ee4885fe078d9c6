"""Worker processes that open the images of batches ahead of the training."""

from __future__ import annotations

import os
import signal
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from pskd.errors import PskdError
from pskd.workbench.data.pictures import Picture

if TYPE_CHECKING:
    from pskd.workbench.data.splits import OpenedSplit

AHEAD = 2  # batches that each worker has made, or is making
T = TypeVar("T")
R = TypeVar("R")


class Augmentation(Protocol):
    """What happens to training images: a pure function of (seed, epoch, sample); see ``pskd.workbench.augment``."""

    def open(
        self, pictures: Sequence[Picture], index: Tensor, *, seed: int, epoch: int, out: Tensor | None = None
    ) -> Tensor: ...

    def __call__(
        self, images: Tensor, index: Tensor, *, seed: int, epoch: int, opened: bool = False, out: Tensor | None = None
    ) -> Tensor: ...


def make_in_workers(make: Callable[[T], R], tasks: Sequence[T], workers: int) -> Iterator[R]:
    """``make(task)`` of each task, in their order, made ahead by worker processes; with 0 workers it is made here."""
    for result in _start_loader(_Making(make), tasks, min(workers, len(tasks))):
        if isinstance(result, str):
            raise PskdError(result)
        yield result


@dataclass
class _Making(Dataset[Any]):
    """What ``make`` gives for a task, or the message of its PskdError.

    An exception of a worker process would arrive with the worker's traceback in its message; a string arrives as it is.
    """

    make: Callable[[Any], Any] | None

    def __getitem__(self, task: Any) -> Any:
        assert self.make is not None
        try:
            return self.make(task)
        except PskdError as error:
            return str(error)


def _start_loader(making: _Making, tasks: Sequence[Any], workers: int, **options: Any) -> DataLoader[Any]:
    return DataLoader(
        making,
        sampler=tasks,
        batch_size=None,
        num_workers=workers,
        worker_init_fn=shield_from_signals,
        # Without its own generator each loader would take a number from torch's global one, and a run that was
        # resumed within an epoch would go on with other random numbers than an undisturbed one.
        generator=torch.Generator(),
        **options,
    )


def open_batches(
    split: OpenedSplit,
    plan: Sequence[Tensor],
    augment: Augmentation | None,
    *,
    seed: int,
    epoch: int,
    workers: int,
    pinned: bool,
) -> Iterator[Tensor]:
    """(B, C, H, W) uint8 for each (B,) tensor of sample numbers; each is valid until the next one is asked for.

    ``pinned``: batches are copied to memory that an accelerator reads.
    """
    workers = min(workers, len(plan))
    training = workers > 0 and augment is not None
    slots = min(AHEAD * workers + 1, len(plan)) if training and not pinned else 0
    setup: _Setup = augment, seed, workers, pinned, (slots, max(map(len, plan), default=0))
    idle = _IDLE.setdefault(split, [])
    used = next((each for each in idle if each.setup == setup), None)
    idle[:] = [] if training and used is None else [each for each in idle if each is not used]
    used = used or _Workers(split, setup)
    left = len(plan)
    try:
        for images in used.open(plan, epoch):
            left -= 1
            yield images
    finally:
        # Training comes back for the next epoch, which then need not start processes and map memory anew.
        if training and not left and split.lasting:
            idle.append(used)


# Augmentation, seed, workers, pinned; batches in shared memory (0: there is none) and the most samples of each.
_Setup = tuple[Augmentation | None, int, int, bool, tuple[int, int]]
_Task = tuple[int, int, np.ndarray]  # epoch, step, sample numbers


class _Workers:
    """Worker processes that open batches of a split, and the shared memory that they write them to."""

    def __init__(self, split: OpenedSplit, setup: _Setup) -> None:
        self.setup = setup
        augment, seed, workers, pinned, slots = setup
        self._slots: Tensor | None = None
        if slots[0]:
            # While one batch is used here, workers write others. Memory that is mapped once saves the pages of each
            # batch in either process.
            shape = (*slots, split.view.channels, *split.view.size)
            self._slots = torch.empty(shape, dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call]
        self._making = _Making(_BatchOpening(split, augment, seed, self._slots))
        self._tasks: list[_Task] = []
        ahead = AHEAD if workers else None
        self._loader = _start_loader(
            self._making, self._tasks, workers, prefetch_factor=ahead, persistent_workers=workers > 0, pin_memory=pinned
        )

    def open(self, plan: Sequence[Tensor], epoch: int) -> Iterator[Tensor]:
        self._tasks[:] = [(epoch, step, index.numpy()) for step, index in enumerate(plan)]
        results = iter(self._loader)
        if self._loader.num_workers:
            self._making.make = None  # workers have their own copy; without ours, they end when the split is deleted
        for step, images in enumerate(results):
            if isinstance(images, str):
                raise PskdError(images)
            yield images if self._slots is None else self._slots[step % len(self._slots), : len(plan[step])]


_IDLE: weakref.WeakKeyDictionary[OpenedSplit, list[_Workers]] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class _BatchOpening:
    """Opens the images of a task, and returns them; None: it has written them to their slot."""

    split: OpenedSplit
    augment: Augmentation | None
    seed: int
    slots: Tensor | None

    def __call__(self, task: _Task) -> Tensor | None:
        epoch, step, samples = task
        index, view, together = torch.from_numpy(samples), self.split.view, self.split.together
        if self.slots is None:
            images = torch.empty(len(index), view.channels, *view.size, dtype=torch.uint8)
        else:
            images = self.slots[step % len(self.slots), : len(index)]
        for part, out in zip(torch.split(index, together), torch.split(images, together), strict=True):
            if self.augment is None:
                for place, sample in zip(out, part.tolist(), strict=True):
                    place.copy_(self.split.pixels(sample))
            else:
                pictures = [self.split.picture(sample) for sample in part.tolist()]
                self.augment.open(pictures, part, seed=self.seed, epoch=epoch, out=out)
        return images if self.slots is None else None


def shield_from_signals(_worker: int) -> None:
    """Ctrl-C and a job's end are sent to the whole process group, but only the main process may answer them.

    It still needs its workers for the step it finishes before it saves, and ends them itself; they notice when it dies.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(os, "setpgrp"):
        os.setpgrp()
