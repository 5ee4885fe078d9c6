"""What each method and mix adds to a training step, in per cent of the step: one table.

The step is that of CIFAR ResNet-20 with plain cross-entropy in channels-last: batch 128, 100 classes, forward,
backward, SGD. A loss adds its own forward and backward minus those of ``F.cross_entropy`` on the same logits; a method
with a second network, a second batch or heads adds those passes too; a mix adds its own time. All are timed in turn.
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
from pskd.methods import (
    BYOT,
    CRL,
    CSKD,
    DDGSD,
    DLB,
    ELR,
    OLS,
    SAT,
    TFKD,
    DisturbLabel,
    Focal,
    LabelSmoothing,
    MaxSup,
    MeanTeacher,
    Method,
    SameClassPartners,
    TemporalEnsembling,
    ZipfLS,
)
from pskd.workbench.augment.mix import Mix
from pskd.workbench.models.heads import HeadedNet, HeadedOutput

ROUNDS, REPEATS = 30, 20  # one round times a step and a forward pass once, everything small REPEATS times
LIMITS = {
    "PS-KD, bank": 0.2,
    "PS-KD, auto": 0.2,
    "PS-KD, momentum": 0.2,
    "label smoothing": 0.2,
    "TF-KD, reg": 0.2,
    "PS-KD, snapshot": 40,
    "TF-KD, self": 40,
    "CS-KD": 45,
    "OLS": 0.5,
    "Zipf LS": 0.5,
    "MaxSup": 0.5,
    "focal": 0.5,
    "DisturbLabel": 0.5,
    "SAT": 0.5,
    "ELR": 0.5,
    "CRL": 0.5,
    "temporal ens.": 0.5,
    "mean teacher": 40,
    "PS-KD, ema": 40,
    "PS-KD, partners": 45,
    "DDGSD": 110,
    "DLB": 110,
    "BYOT": 60,
    "Cutout": 0.5,
    "CutMix": 0.5,
    "Mixup": 0.5,
}
# What a method has made beside its loss.
PASSES = {
    "PS-KD, snapshot": ("evaluating forward",),
    "TF-KD, self": ("evaluating forward",),
    "CS-KD": ("training forward",),
    "mean teacher": ("evaluating forward", "following"),
    "PS-KD, ema": ("evaluating forward", "following"),
    "PS-KD, partners": ("training forward",),
    "DDGSD": ("forward and backward",),
    "DLB": ("forward and backward",),
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

    def begun(method: Method, **given: torch.Tensor) -> Method:
        """In its second epoch, with the past of these samples."""
        method.start_epoch(0)
        method(logits, y, **given)
        method.start_epoch(1)
        return method

    def rows(num_classes: int = CLASSES) -> pskd.PredictionBank:
        return pskd.PredictionBank(SAMPLES, num_classes, max_age=None)

    def in_second_epoch(method: Method, **given: torch.Tensor) -> Callable[[], None]:
        return loss_of(begun(method, **given), **given)

    copied = pskd.Snapshot(torch.nn.Identity(), ema=0.99)
    following = pskd.Snapshot(model, ema=0.99)
    following.record(None, logits)
    headed = HeadedNet(pskd.models.create("resnet20", num_classes=CLASSES)).to(memory_format=torch.channels_last)

    def with_heads() -> None:
        headed.zero_grad()
        output = headed(images)
        assert isinstance(output, HeadedOutput)
        BYOT()(output.logits, y, head_logits=output.head_logits, head_features=output.head_features).backward()

    def without_heads() -> None:
        headed.zero_grad()
        F.cross_entropy(headed.deployed(images), y).backward()

    def forward_and_backward() -> None:
        model.zero_grad()
        F.cross_entropy(model(images), y).backward()

    partners = SameClassPartners(labels)
    small: dict[str, Callable[[], None]] = {
        "F.cross_entropy": repeated(lambda: F.cross_entropy(logits, y).backward()),
        "PS-KD, bank": loss_of(filled_method(labels), index=index),
        "PS-KD, auto": in_second_epoch(pskd.PSKD(epochs=300, alpha="auto", memory=rows()), index=index),
        "PS-KD, momentum": loss_of(filled_method(labels, momentum=0.9), index=index),
        "label smoothing": loss_of(LabelSmoothing()),
        "TF-KD, reg": loss_of(TFKD("reg")),
        "PS-KD, snapshot": in_second_epoch(
            pskd.PSKD(epochs=300, memory=pskd.Snapshot(torch.nn.Identity())), inputs=others
        ),
        "TF-KD, self": loss_of(TFKD("self"), teacher_logits=others),
        "CS-KD": repeated(lambda: (partners(index, 1), CSKD()(logits, y, partner_logits=others).backward())),
        "OLS": in_second_epoch(OLS(300, CLASSES)),
        "Zipf LS": loss_of(ZipfLS()),
        "MaxSup": in_second_epoch(MaxSup(300)),
        "focal": loss_of(Focal()),
        "DisturbLabel": in_second_epoch(DisturbLabel(300), index=index),
        "SAT": in_second_epoch(SAT(300, warmup=0.0, memory=rows()), index=index),
        "ELR": in_second_epoch(ELR(300, memory=rows()), index=index),
        "CRL": in_second_epoch(CRL(300, memory=rows(3)), index=index),
        "temporal ens.": in_second_epoch(TemporalEnsembling(300, memory=rows()), index=index),
        "mean teacher": in_second_epoch(MeanTeacher(300, memory=copied), inputs=others),
        "PS-KD, ema": in_second_epoch(pskd.PSKD(epochs=300, memory=copied), inputs=others),
        "PS-KD, partners": in_second_epoch(
            pskd.PSKD(epochs=300, memory=rows(), partners=1.0), index=index, partner_logits=others
        ),
        "DDGSD": loss_of(DDGSD(), view_logits=others),
        "DLB": in_second_epoch(DLB(300), view=others, last_logits=others),
        "following": repeated(lambda: following.record(None, logits)),
    }
    for name in ("Cutout", "CutMix", "Mixup"):
        mix = Mix(name.lower(), shares=True)
        small[name] = repeated(lambda mix=mix: mix(images.clone(), y, index, seed=0, epoch=1))  # type: ignore[misc]
    small["a copy"] = repeated(images.clone)

    large = {
        "step": step,
        "evaluating forward": evaluating_forward,
        "training forward": training_forward,
        "forward and backward": forward_and_backward,
        "with heads": with_heads,
        "without heads": without_heads,
    }
    names, sides = [*small, *large], [*small.values(), *large.values()]
    seconds = dict(zip(names, alternate(*sides, rounds=ROUNDS), strict=True))
    typical = statistics.median(seconds["step"])
    print(f"training step: {median(seconds['step'])} s\n")
    print(f"{'':<18}{'adds, % of a step':>18}  {'95% interval':<20}{'at most':>8}")
    within = True
    for name, limit in LIMITS.items():
        if name == "BYOT":
            added = [a - b for a, b in zip(seconds["with heads"], seconds["without heads"], strict=True)]
        else:
            without = seconds["a copy"] if name in ("Cutout", "CutMix", "Mixup") else seconds["F.cross_entropy"]
            added = [(own - plain) / REPEATS for own, plain in zip(seconds[name], without, strict=True)]
        for part in PASSES.get(name, ()):
            each = REPEATS if part in small else 1
            added = [a + b / each for a, b in zip(added, seconds[part], strict=True)]
        share = median([100 * each / typical for each in added])
        within &= share.median <= limit
        print(f"{name:<18}{share.median:>18.3f}  {f'{share.low:.3f} to {share.high:.3f}':<20}{limit:>8}")
    print(f"all within their limits: {'yes' if within else 'no'}")


if __name__ == "__main__":
    main()
