"""Images per second of `pskd train`'s loop with a detector over those of a bare loop: at least 0.97.

Both train the same torchvision model, Faster R-CNN with a pyramid on ResNet-8, on the same 32 scenes of digits with
batch 4; a round is one epoch of eight steps of each, without evaluation. The bare loop is what one would write by hand
around torchvision's model: no random numbers per sample, no checks, no resume.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from loop_overhead import compare

from pskd.workbench.config import resolve
from pskd.workbench.recipes import read_recipe
from pskd.workbench.tasks.detection import Detection

IMAGES, BATCH, ROUNDS = 32, 4, 30


def main() -> None:
    words = [f"data.train_images={IMAGES}", "data.test_images=1", "model.backbone=resnet8", "epochs=100000"]
    config = resolve(read_recipe("detection/digits"), [*words, f"batch_size={BATCH}", "optim.schedule=constant"])
    task = Detection(config)
    compare(config, task, bare_loop(task), IMAGES, ROUNDS)


def bare_loop(task: Detection) -> Callable[[], None]:
    """One epoch of the loop that one would write by hand."""
    settings, scenes = task.config.optim, task.data.train
    images = [scenes.pixels(number).float() / 255 for number in range(IMAGES)]
    targets = [
        {"boxes": scenes.boxes[start:end], "labels": scenes.labels[start:end] + 1}
        for start, end in scenes.offsets.unfold(0, 2, 1).tolist()
    ]
    model = task.model().to(memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(
        model.parameters(), settings.lr, momentum=settings.momentum, weight_decay=settings.weight_decay
    )

    def run() -> None:
        for index in torch.randperm(IMAGES).split(BATCH):
            losses = model([images[i] for i in index], [targets[i] for i in index])
            loss = sum(losses.values())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return run


if __name__ == "__main__":
    main()
