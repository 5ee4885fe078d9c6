"""Images per second of `pskd train`'s loop over those of the code that the paper's authors released.

    python benchmarks/released.py PATH [--data DIR] [--model NAME] [--images N] [--batch N] [--rounds N]

PATH is a checkout of their repository, lgcnsai/PS-KD-Pytorch; DIR, by default $PSKD_DATA, holds cifar-100-python. Their
own network, data loader, loss and training function are called; on a machine without a GPU, ``cuda()`` is made to leave
things where they are. Both train ResNet-18 by PS-KD on the same images of CIFAR-100 and take turns by epochs, in one
process, without workers; seconds are those of the processor. With NAME, a model of ours that is none of theirs, their
loop trains this one, too: the smaller it is, the more what surrounds it counts.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from loop_overhead import compare
from torch import nn

from pskd.workbench.config import resolve
from pskd.workbench.recipes import read_recipe
from pskd.workbench.tasks.classification import Classification

CLASSES, EPOCHS, RESNET18 = 100, 300, "preact_resnet18"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("PSKD_DATA", ".")))
    parser.add_argument("--model", default=RESNET18)
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    if not (given.path / "main.py").is_file():
        print(f"skipped: {given.path} is no checkout of the released code (git clone it there)")
        return
    if not (given.data / "cifar-100-python").is_dir():
        print(f"skipped: {given.data} has no cifar-100-python (name its folder with --data)")
        return
    if given.images % CLASSES:
        parser.error(f"--images must be a multiple of {CLASSES}, so that every class has as many")
    words = [f"data.root={given.data}", f"data.per_class={given.images // CLASSES}", f"batch_size={given.batch}"]
    model = [] if given.model == RESNET18 else [f"model={given.model}"]
    config = resolve(read_recipe("cifar100/preact_resnet18"), [*words, *model, "method=ps_kd", f"epochs={EPOCHS}"])
    task = Classification(config)  # type: ignore[arg-type]
    with on_this_machine(given.path.resolve()):
        epoch, network = released(task, given)
        own, theirs = (sum(p.numel() for p in net.parameters()) for net in (task.model(), network))
        print(f"{given.model}, {given.images} images, batches of {given.batch}")
        print(f"parameters: ours {own:,}, theirs {theirs:,}")
        compare(config, task, epoch, given.images, given.rounds, warmup=1, clock=time.process_time)


@contextlib.contextmanager
def on_this_machine(checkout: Path) -> Iterator[None]:
    """Their modules can be imported, and find neither a GPU nor a terminal."""
    patches = [mock.patch.object(os, "popen", return_value=io.StringIO("24 80"))]
    if not torch.cuda.is_available():
        patches += [mock.patch.object(kind, "cuda", lambda self, *_, **__: self) for kind in (torch.Tensor, nn.Module)]
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        sys.path.insert(0, str(checkout))
        yield


def released(task: Classification, given: Namespace) -> tuple[Callable[[], None], nn.Module]:
    """An epoch of theirs on our task's training images, and the network that it trains."""
    code: Any = import_module("main")
    arguments = Namespace(
        PSKD=True,
        gpu=None,
        rank=0,
        workers=0,
        distributed=False,
        multiprocessing_distributed=False,
        data_type="cifar100",
        data_path=str(given.data),
        classifier_type="ResNet18",
        batch_size=given.batch,
        end_epoch=EPOCHS,
    )
    silence = contextlib.redirect_stdout(io.StringIO())
    with silence:
        network = code.get_network(arguments) if given.model == RESNET18 else task.model()
        loader, *_ = code.custom_dataloader.dataloader(arguments)
    train = task.data.train
    loader.dataset.data = train.images.permute(0, 2, 3, 1).contiguous().numpy()
    loader.dataset.targets = train.labels.tolist()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    losses = nn.CrossEntropyLoss(), code.Custom_CrossEntropy_PSKD()
    predictions, epoch = torch.zeros(len(train), CLASSES), 0

    def run() -> None:
        nonlocal predictions, epoch
        alpha = 0.8 * (epoch + 1) / EPOCHS
        with silence:
            predictions = code.train(predictions, *losses, optimizer, network, epoch, alpha, loader, arguments)
        epoch += 1

    return run, network


if __name__ == "__main__":
    main()
