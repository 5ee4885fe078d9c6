"""What PS-KD adds to a training step, in per cent of the step.

The step is that of CIFAR ResNet-20 with plain cross-entropy: batch 128, 100 classes, forward, backward, SGD. What is
added is PS-KD's loss forward and backward, recall and record from a bank of 50,000 rows, minus ``F.cross_entropy``
forward and backward on the same logits. The three are timed alternately.
"""

from __future__ import annotations

import statistics

import torch
import torch.nn.functional as F
from side_by_side import alternate, median

import pskd

BATCH, CLASSES, SAMPLES = 128, 100, 50_000
ROUNDS, REPEATS = 40, 50  # one round times one step, and each loss REPEATS times


def filled_method(labels: torch.Tensor, momentum: float = 0.0) -> pskd.PSKD:
    """PS-KD in its second epoch: every sample has a past prediction."""
    method = pskd.PSKD(epochs=300, memory=pskd.PredictionBank(SAMPLES, CLASSES, momentum=momentum))
    method.start_epoch(0)
    for index in torch.arange(SAMPLES).split(BATCH):
        method(torch.randn(len(index), CLASSES, requires_grad=True), labels[index], index=index)
    method.start_epoch(1)
    return method


def main() -> None:
    torch.manual_seed(0)
    labels = torch.randint(CLASSES, (SAMPLES,))
    batches = torch.randperm(SAMPLES).split(BATCH)[:REPEATS]
    logits = torch.randn(BATCH, CLASSES, requires_grad=True)
    distill = filled_method(labels)

    model = pskd.models.create("resnet20", num_classes=CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    images = torch.randn(BATCH, 3, 32, 32)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels[:BATCH]).backward()
        optimizer.step()

    def plain() -> None:
        for index in batches:
            logits.grad = None
            F.cross_entropy(logits, labels[index]).backward()

    def distilled() -> None:
        for index in batches:
            logits.grad = None
            distill(logits, labels[index], index=index).backward()

    seconds_step, seconds_plain, seconds_distilled = alternate(step, plain, distilled, rounds=ROUNDS)
    typical = statistics.median(seconds_step)
    added = [(ours - theirs) / REPEATS for ours, theirs in zip(seconds_distilled, seconds_plain, strict=True)]
    print(f"training step            {median(seconds_step)} s")
    print(f"F.cross_entropy          {median([each / REPEATS * 1e6 for each in seconds_plain])} us")
    print(f"PS-KD                    {median([each / REPEATS * 1e6 for each in seconds_distilled])} us")
    print(f"added by PS-KD           {median([each * 1e6 for each in added])} us")
    print(f"share of a step, per cent (at most 0.2): {median([100 * each / typical for each in added])}")


if __name__ == "__main__":
    main()
