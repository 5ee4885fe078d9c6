"""What the models' memory layout is worth: training steps of each choice against its alternatives, on one thread.

    python benchmarks/models.py

- PyramidNet's shortcut, added into the channels it has, against a shortcut that is padded with zeros first.
- DenseNet's one concatenation per layer against a list of features that is joined anew for each layer, and, for one
  batch norm, against reading a slice of a buffer that holds the whole stage.
- channels-last against the default format, for a member of each family.

The last line is the time of a PyramidNet step with a padded shortcut over the time of ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from side_by_side import Estimate, alternate, median
from torch import Tensor, nn
from torch.nn import functional as F

from pskd.workbench import models
from pskd.workbench.models.families import pyramidnet
from pskd.workbench.models.families.densenet import DenseLayer

Add = Callable[[Tensor, Tensor], Tensor]
FAMILIES: dict[str, dict[str, Any]] = {
    "resnet20": {},
    "bottleneck_resnet": {"blocks": [1, 1, 1, 1], "width": 32},
    "preact_resnet": {"blocks": [1, 1, 1, 1], "width": 32},
    "resnext": {"depth": 11, "cardinality": 4, "width": 16},
    "densenet": {"blocks": [2, 2, 2, 2], "growth": 12},
    "pyramidnet20": {},
}


def pad_with_cat(residual: Tensor, shortcut: Tensor) -> Tensor:
    batch, channels, *size = shortcut.shape
    zeros = shortcut.new_zeros(batch, residual.shape[1] - channels, *size)
    return residual + torch.cat((shortcut, zeros), 1)


def pad_in_one_call(residual: Tensor, shortcut: Tensor) -> Tensor:
    return residual + F.pad(shortcut, (0, 0, 0, 0, 0, residual.shape[1] - shortcut.shape[1]))


class FeatureListStage(nn.Sequential):
    """A DenseNet stage that keeps the features apart and joins all of them in front of each layer."""

    def forward(self, x: Tensor) -> Tensor:
        features = [x]
        for module in self:
            joined = torch.cat(features, 1)
            features = [*features, module.layers(joined)] if isinstance(module, DenseLayer) else [module(joined)]
        return torch.cat(features, 1)


def training_step(
    model: nn.Module,
    batch: int = 32,
    add: Add = pyramidnet.add_zero_padded,
    layout: torch.memory_format = torch.channels_last,
) -> Callable[[], None]:
    model.to(memory_format=layout)
    images = torch.randn(batch, 3, 32, 32).to(memory_format=layout)
    labels = torch.randint(100, (batch,))

    def step() -> None:
        pyramidnet.add_zero_padded = add
        model.zero_grad()
        F.cross_entropy(model(images), labels).backward()

    return step


def batch_norm_of(source: Callable[[], Tensor]) -> Callable[[], None]:
    norm = nn.BatchNorm2d(source().shape[1])

    def step() -> None:
        features = source().requires_grad_()
        norm(features).backward(torch.ones(features.shape).to(memory_format=torch.channels_last))

    return step


def times_ours(ours: Callable[[], None], other: Callable[[], None]) -> Estimate:
    seconds = alternate(ours, other)
    return median([b / a for a, b in zip(*seconds, strict=True)])


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)

    for name, options in FAMILIES.items():
        ours, other = (models.create(name, 100, **options) for _ in range(2))
        ratio = times_ours(training_step(ours), training_step(other, layout=torch.contiguous_format))
        print(f"{name}: default format over channels-last: {ratio}")

    listed = models.create("densenet", 100, **FAMILIES["densenet"])
    listed.stages = nn.Sequential(*(FeatureListStage(*stage) for stage in listed.stages))
    dense = models.create("densenet", 100, **FAMILIES["densenet"])
    print(
        f"densenet: list of features over one concatenation: {times_ours(training_step(dense), training_step(listed))}"
    )
    stage = torch.randn(32, 512, 16, 16).to(memory_format=torch.channels_last)
    parts = [part.contiguous(memory_format=torch.channels_last) for part in (stage[:, :224], stage[:, 224:256])]
    ratio = times_ours(batch_norm_of(lambda: torch.cat(parts, 1)), batch_norm_of(lambda: stage[:, :256].detach()))
    print(f"batch norm: slice of a buffer over concatenation and batch norm: {ratio}")

    pyramid = models.create("pyramidnet20", 100)
    for title, add in (("F.pad", pad_in_one_call), ("zeros and torch.cat", pad_with_cat)):
        ratio = times_ours(training_step(pyramid), training_step(pyramid, add=add))
        print(f"pyramidnet20: shortcut padded by {title} over ours: {ratio}")


if __name__ == "__main__":
    main()
