"""What checkpoints cost: the time of one, and its share of the training time at the default ``train.save_every``.

The parts are those of a real run: weights, SGD's momentum, and a bank in which every row is written, for CIFAR-100
(PreAct ResNet-18, dense float16 bank) and for ImageNet (ResNet-50, top-k bank of 167 MB). Each is written as a run does
it: to another name, with checksums, flushed to the disk, renamed. `auto` waits 2 minutes between checkpoints, or 100
times as long as the last one took: the share is at most 1% by construction, and this shows how far below it is.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import torch
from side_by_side import median
from torch import nn

import pskd
from pskd.workbench.config import OptimConfig
from pskd.workbench.runs.checkpoint import Checkpoints
from pskd.workbench.train import build

KINDS = {
    "CIFAR-100, PreAct ResNet-18": ("preact_resnet18", 50_000, 100, {}),
    "ImageNet, ResNet-50": ("torchvision:resnet50", 1_281_167, 1000, {"form": "topk"}),
}
ROUNDS, PATIENCE = 10, 120  # times, seconds


def parts_of(model: nn.Module, bank: pskd.PredictionBank) -> dict[str, object]:
    """What the leader of a run writes, after a step and an epoch."""
    optimizer = build.optimizer(model, OptimConfig())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    logits = torch.randn(4096, bank.num_classes)
    for index in torch.arange(bank.num_samples).split(4096):
        bank.record(index, logits[: len(index)])
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "method-0": {"memory": bank.state_dict()}}


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    for name, (architecture, samples, classes, form) in KINDS.items():
        model = pskd.models.create(architecture, num_classes=classes)
        parts = parts_of(model, pskd.PredictionBank(samples, classes, **form))  # type: ignore[arg-type]
        seconds = []
        with tempfile.TemporaryDirectory() as folder:
            checkpoints = Checkpoints(Path(folder), keep_last=2)
            for step in range(ROUNDS):
                begun = time.monotonic()
                written = checkpoints.save(step, parts)
                seconds.append(time.monotonic() - begun)
            size = sum(file.stat().st_size for file in written.iterdir())
        wait = max(PATIENCE, 100 * statistics.median(seconds))
        share = 100 * statistics.median(seconds) / wait
        print(f"{name}: {size / 1e6:.0f} MB in {median(seconds)} s; one every {wait:.0f} s: {share:.2f} % (at most 1)")


if __name__ == "__main__":
    main()
