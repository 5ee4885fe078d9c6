"""DenseNet-BC for small images: Huang et al., Densely Connected Convolutional Networks (CVPR 2017)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pskd.workbench.models.base import Init, Size, StagedNet, check_blocks, conv, family, norm_relu


class DenseLayer(nn.Module):
    """Norm, ReLU, 1x1 and norm, ReLU, 3x3 convolution; their ``growth`` channels are appended to what came in."""

    def __init__(self, in_channels: int, growth: int) -> None:
        super().__init__()
        inner = 4 * growth
        self.layers = nn.Sequential(
            norm_relu(in_channels), conv(in_channels, inner, 1), norm_relu(inner), conv(inner, growth, 3)
        )

    def forward(self, x: Tensor) -> Tensor:
        # One copy per layer: 4 to 8% of a training step. Writing into one buffer for the whole stage would save it, but
        # then batch norm reads slices of the buffer, which takes 6 to 17 times as long as copying and reading the copy.
        return torch.cat((x, self.layers(x)), 1)


@family("densenet", densenet121={"blocks": (6, 12, 24, 16), "init": "torch"})
class DenseNet(StagedNet):
    """Stages of dense layers, ``blocks`` of them per stage; (6, 12, 24, 16) is DenseNet-121.

    The stem has twice ``growth`` channels; the transition that begins every further stage halves channels, H and W.
    """

    def __init__(
        self,
        num_classes: int,
        in_channels: int = 3,
        *,
        blocks: Sequence[int] = (6, 12, 24, 16),
        growth: Size = 32,
        init: Init = "he",
    ) -> None:
        check_blocks(blocks)
        channels = 2 * growth
        stem = conv(in_channels, channels, 3)
        stages: list[nn.Sequential] = []
        stage_channels = []
        for count in blocks:
            stage = nn.Sequential()
            if stages:
                stage.extend([norm_relu(channels), conv(channels, channels // 2, 1), nn.AvgPool2d(2)])
                channels //= 2
            for _ in range(count):
                stage.append(DenseLayer(channels, growth))
                channels += growth
            stages.append(stage)
            stage_channels.append(channels)
        super().__init__(stem, stages, stage_channels, norm_relu(channels), num_classes, init)
