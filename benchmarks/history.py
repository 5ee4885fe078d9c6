"""What recording every sample's probabilities adds to a training step, in per cent of the step: at most 0.5.

The step is that of CIFAR ResNet-20 with plain cross-entropy: batch 128, 100 classes, forward, backward, SGD. What is
added is the record of a batch and, with PS-KD, the comparison with the past.
"""

from __future__ import annotations

import statistics
from pathlib import Path

import torch
import torch.nn.functional as F
from side_by_side import alternate, median
from step_overhead import BATCH, CLASSES, REPEATS, ROUNDS, SAMPLES

import pskd
from pskd.targets import Past
from pskd.workbench.analysis.history import History
from pskd.workbench.tasks.base import Shown


def main() -> None:
    torch.manual_seed(0)
    history = History(Path("unused"), SAMPLES, torch.device("cpu"))
    labels, past = torch.randint(CLASSES, (BATCH,)), Past(torch.softmax(torch.randn(BATCH, CLASSES), 1))
    batches = torch.randperm(SAMPLES).split(BATCH)[:REPEATS]
    logits = torch.randn(BATCH, CLASSES)
    model = pskd.models.create("resnet20", num_classes=CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    images = torch.randn(BATCH, 3, 32, 32)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    def plain() -> None:
        for index in batches:
            history.batch(Shown(index, logits, labels, None))

    def with_past() -> None:
        for index in batches:
            history._compare(logits, labels, past, 0.4)
            history.batch(Shown(index, logits, labels, None))

    seconds_step, *added = alternate(step, plain, with_past, rounds=ROUNDS)
    typical = statistics.median(seconds_step)
    print(f"training step        {median(seconds_step)} s")
    for name, seconds in zip(("record", "record, with a past"), added, strict=True):
        print(f"{name:<20} {median([each / REPEATS * 1e6 for each in seconds])} us")
        print(f"    share of a step, per cent (at most 0.5): {median([100 * s / REPEATS / typical for s in seconds])}")


if __name__ == "__main__":
    main()
