"""What each method and mix adds to a training step, in per cent of the step: one table.

The step is that of CIFAR ResNet-20 with plain cross-entropy in channels-last: batch 128, 100 classes, forward,
backward, SGD. A loss adds its own forward and backward minus those of ``F.cross_entropy`` on the same logits; a method
with a second network or a second batch adds that forward pass too; a mix adds its own time. All are timed alternately.
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable

import torch
import torch.nn.functional as F
from side_by_side import alternate, median
from step_overhead import BATCH, CLASSES, SAMPLES, filled_method

import pskd
from pskd.augment.mix import Mix
from pskd.methods.base import Method
from pskd.methods.cs_kd import CSKD, SameClassPartners
from pskd.methods.label_smoothing import LabelSmoothing
from pskd.methods.tf_kd import TFKD

ROUNDS, REPEATS = 30, 20  # one round times a step and a forward pass once, everything small REPEATS times
LIMITS = {
    "PS-KD, bank": 0.2,
    "PS-KD, momentum": 0.2,
    "label smoothing": 0.2,
    "TF-KD, reg": 0.2,
    "PS-KD, snapshot": 40,
    "TF-KD, self": 40,
    "CS-KD": 45,
    "Cutout": 0.5,
    "CutMix": 0.5,
    "Mixup": 0.5,
}


def main() -> None:
    torch.manual_seed(0)
    labels = torch.randint(CLASSES, (SAMPLES,))
    index = torch.randperm(SAMPLES)[:BATCH]
    y = labels[index]
    logits = torch.randn(BATCH, CLASSES, requires_grad=True)
    others = torch.randn(BATCH, CLASSES)
    model = pskd.models.create("resnet20", num_classes=CLASSES).to(memory_format=torch.channels_last)
    frozen = copy.deepcopy(model).eval().requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    images = torch.randn(BATCH, 3, 32, 32).to(memory_format=torch.channels_last)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), y).backward()
        optimizer.step()

    @torch.no_grad()
    def evaluating_forward() -> None:
        frozen(images)

    @torch.no_grad()
    def training_forward() -> None:
        model(images)

    def repeated(work: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            for _ in range(REPEATS):
                logits.grad = None
                work()

        return run

    def loss_of(method: Method, **given: torch.Tensor) -> Callable[[], None]:
        return repeated(lambda: method(logits, y, **given).backward())

    with_snapshot = pskd.PSKD(epochs=300, memory=pskd.Snapshot(torch.nn.Identity()))
    for epoch in range(2):
        with_snapshot.start_epoch(epoch)
    partners = SameClassPartners(labels)
    small: dict[str, Callable[[], None]] = {
        "F.cross_entropy": repeated(lambda: F.cross_entropy(logits, y).backward()),
        "PS-KD, bank": loss_of(filled_method(labels), index=index),
        "PS-KD, momentum": loss_of(filled_method(labels, momentum=0.9), index=index),
        "label smoothing": loss_of(LabelSmoothing()),
        "TF-KD, reg": loss_of(TFKD("reg")),
        "PS-KD, snapshot": loss_of(with_snapshot, inputs=others),
        "TF-KD, self": loss_of(TFKD("self"), teacher_logits=others),
        "CS-KD": repeated(lambda: (partners(index, 1), CSKD()(logits, y, partner_logits=others).backward())),
    }
    for name in ("Cutout", "CutMix", "Mixup"):
        mix = Mix(name.lower(), shares=True)
        small[name] = repeated(lambda mix=mix: mix(images.clone(), y, index, seed=0, epoch=1))  # type: ignore[misc]
    small["a copy"] = repeated(images.clone)

    names = [*small, "step", "evaluating forward", "training forward"]
    sides = [*small.values(), step, evaluating_forward, training_forward]
    seconds = dict(zip(names, alternate(*sides, rounds=ROUNDS), strict=True))
    typical = statistics.median(seconds["step"])
    print(f"training step: {median(seconds['step'])} s\n")
    print(f"{'':<18}{'adds, % of a step':>18}  {'95% interval':<20}{'at most':>8}")
    within = True
    for name, limit in LIMITS.items():
        without = seconds["a copy"] if name in ("Cutout", "CutMix", "Mixup") else seconds["F.cross_entropy"]
        added = [(own - plain) / REPEATS for own, plain in zip(seconds[name], without, strict=True)]
        extra = {
            "PS-KD, snapshot": "evaluating forward",
            "TF-KD, self": "evaluating forward",
            "CS-KD": "training forward",
        }
        if name in extra:
            added = [a + b for a, b in zip(added, seconds[extra[name]], strict=True)]
        share = median([100 * each / typical for each in added])
        within &= share.median <= limit
        print(f"{name:<18}{share.median:>18.3f}  {f'{share.low:.3f} to {share.high:.3f}':<20}{limit:>8}")
    print(f"all within their limits: {'yes' if within else 'no'}")


if __name__ == "__main__":
    main()
