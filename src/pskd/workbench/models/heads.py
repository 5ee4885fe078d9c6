"""Heads on the stages of a network, for training only."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from torch import Tensor, nn

from pskd.errors import PskdError
from pskd.workbench.models.base import StagedNet, conv_norm_relu


class HeadedOutput(NamedTuple):
    """Logits (B, K) of the network and of each head; features (B, D) of each head and, last, of the network."""

    logits: Tensor
    head_logits: list[Tensor]
    head_features: list[Tensor]


class Head(nn.Module):
    """From a stage's map to features like those of the last stage, halving the map once for each stage between."""

    def __init__(self, channels: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        pairs = itertools.pairwise(channels)
        self.down = nn.Sequential(*(conv_norm_relu(before, after, 3, 2) for before, after in pairs))
        self.fc = nn.Linear(channels[-1], num_classes)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        pooled = self.down(features).mean((2, 3))
        return self.fc(pooled), pooled


class HeadedNet(nn.Module):
    """A network, ``deployed``, with a head on each of its stages but the last.

    In training it returns a ``HeadedOutput``, in evaluation the network's logits alone.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        if not isinstance(net, StagedNet) or len(net.stages) < 2:
            raise PskdError(f"method=byot needs a network of stages, such as model=resnet20, not {type(net).__name__}")
        self.deployed = net
        channels = net.stage_channels
        self.heads = nn.ModuleList(Head(channels[stage:], net.fc.out_features) for stage in range(len(channels) - 1))

    def forward(self, images: Tensor) -> Tensor | HeadedOutput:
        net = self.deployed
        if not self.training:
            logits: Tensor = net(images)
            return logits
        features, head_logits, head_features = net.stem(images), [], []
        for stage, head in itertools.zip_longest(net.stages, self.heads):
            features = stage(features)
            if head is not None:
                logits, pooled = head(features)
                head_logits.append(logits)
                head_features.append(pooled)
        pooled = net.norm(features).mean((2, 3))
        return HeadedOutput(net.fc(pooled), head_logits, [*head_features, pooled])


def without_heads(model: nn.Module) -> nn.Module:
    """The network that a finished run saves."""
    return model.deployed if isinstance(model, HeadedNet) else model
