"""Images per second of `pskd train`'s loop over those of a bare, hand-written loop: at least 0.97.

Both train the same ResNet-20 on the same 512 images of 32x32 with the same crop and flip, batch 128, plain
cross-entropy; a round is one epoch of four steps of each, without evaluation.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from side_by_side import alternate, median

from pskd.workbench import data, models
from pskd.workbench.augment import Augment
from pskd.workbench.config import Config, resolve
from pskd.workbench.runs.folder import RunFolder
from pskd.workbench.tasks.base import Task
from pskd.workbench.tasks.classification import Classification
from pskd.workbench.train.build import accelerator
from pskd.workbench.train.loop import Trainer
from pskd.workbench.train.progress import Progress

IMAGES, BATCH, CLASSES, ROUNDS = 512, 128, 100, 30


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "random.npz")
        draw = np.random.default_rng(0)
        arrays = {
            f"{split}_{part}": values
            for split in ("train", "test")
            for part, values in (
                ("images", draw.integers(0, 256, (IMAGES, 32, 32, 3), dtype=np.uint8)),
                ("labels", np.arange(IMAGES) % CLASSES),
            )
        }
        np.savez(file, **arrays)
        data_words = ("data=npz", f"data.root={file}", f"batch_size={BATCH}")
        config = resolve({}, [*data_words, "model=resnet20", "method=hard", "epochs=100000"])
        compare(config, Classification(config), bare_loop(file), IMAGES, ROUNDS)


def compare(
    config: Config,
    task: Task,
    bare: Callable[[], None],
    images: int,
    rounds: int,
    **timing: Any,
) -> None:
    """Epochs of our loop and of ``bare``, alternately (``timing`` is for ``alternate``); prints speeds and ratio."""
    with our_loop(config, task) as ours:
        seconds = alternate(ours, bare, rounds=rounds, **timing)
    ratio = median([theirs / own for own, theirs in zip(*seconds, strict=True)])
    own, theirs = (images / median(side).median for side in seconds)
    print(f"ours {own:.1f} {task.unit}/s, bare loop {theirs:.1f} {task.unit}/s")
    print(f"ours / bare loop: {ratio}")


@contextlib.contextmanager
def our_loop(config: Config, task: Task) -> Iterator[Callable[[], None]]:
    """The next epoch of `pskd train`'s own loop, without evaluation."""
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder(Path(folder, "run"))
        run.path.mkdir()
        with accelerator(config, run.path) as devices, Progress(1, 0, task.unit, shown=False, log=print) as progress:
            trainer = Trainer(config, task, run, devices)

            def epoch() -> None:
                trainer.train_epoch(progress, [])
                trainer.state.epoch, trainer.state.step = trainer.state.epoch + 1, 0

            yield epoch


def bare_loop(file: Path) -> Callable[[], None]:
    """One epoch of the loop that one would write by hand."""
    loaded = data.load("npz", root=str(file))
    train, augment = loaded.train, Augment(loaded.view)
    model = models.create("resnet20", CLASSES).to(memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    epoch = 0

    def run() -> None:
        nonlocal epoch
        for index in torch.randperm(IMAGES).split(BATCH):
            images = augment(train.images[index], index, seed=0, epoch=epoch)
            loss = F.cross_entropy(model(images), train.labels[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        epoch += 1

    return run


if __name__ == "__main__":
    main()
