"""PyramidNet: Han et al., Deep Pyramidal Residual Networks (CVPR 2017), with ShakeDrop as an option."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from pskd.settings import NotNegative
from pskd.workbench.models.base import (
    Init,
    StagedNet,
    add_zero_padded,
    blocks_of_depth,
    conv,
    conv_norm,
    family,
    norm_relu,
)
from pskd.workbench.models.families.shakedrop import ShakeDrop


class PyramidBlock(nn.Module):
    """Norm first and last, no ReLU at either end; the shortcut has no weights: its missing channels count as zero."""

    def __init__(self, in_channels: int, inner: int, stride: int, shakedrop: ShakeDrop | None) -> None:
        super().__init__()
        self.halves = stride == 2
        self.residual = nn.Sequential(
            nn.BatchNorm2d(in_channels),
            conv(in_channels, inner, 1),
            norm_relu(inner),
            conv(inner, inner, 3, stride),
            norm_relu(inner),
            conv_norm(inner, 4 * inner, 1),
        )
        if shakedrop is not None:
            self.residual.append(shakedrop)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = F.avg_pool2d(x, 2, ceil_mode=True) if self.halves else x
        return add_zero_padded(self.residual(x), shortcut)


@family("pyramidnet", pyramidnet20={"depth": 20, "alpha": 48}, pyramidnet200={"depth": 200, "alpha": 240})
class PyramidNet(StagedNet):
    """Three stages of bottlenecks, ``depth`` = 9 n + 2, that grow wider from block to block.

    Block l of L has the inner width round(16 + ``alpha`` l / L) and puts out four times as many channels. With
    ``shakedrop`` its gate is open with probability 1 - l / (2 L): the deeper, the more it is disturbed.
    """

    def __init__(
        self,
        num_classes: int,
        in_channels: int = 3,
        *,
        depth: int = 200,
        alpha: NotNegative = 240,
        shakedrop: Literal[True, False] = False,
        init: Init = "he",
    ) -> None:
        blocks = blocks_of_depth(depth, layers=3)
        total = 3 * blocks

        def inner(number: int) -> int:
            return round(16 + alpha * number / total)

        stem, channels = conv_norm(in_channels, 16, 3), 16
        stages = [nn.Sequential() for _ in range(3)]
        for number in range(1, total + 1):
            stage, place = divmod(number - 1, blocks)
            shake = ShakeDrop(1 - 0.5 * number / total) if shakedrop else None
            stages[stage].append(PyramidBlock(channels, inner(number), 2 if stage > 0 and place == 0 else 1, shake))
            channels = 4 * inner(number)
        stage_channels = [4 * inner(blocks * stage) for stage in (1, 2, 3)]
        super().__init__(stem, stages, stage_channels, norm_relu(channels), num_classes, init)
