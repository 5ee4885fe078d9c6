"""PyramidNet: Han et al., Deep Pyramidal Residual Networks (CVPR 2017), with ShakeDrop as an option."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from pskd.errors import PskdError
from pskd.workbench.models.base import (
    StagedNet,
    add_zero_padded,
    block_strides,
    blocks_of_depth,
    conv,
    conv_norm,
    family,
    norm_relu,
)
from pskd.workbench.models.shakedrop import ShakeDrop


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
        alpha: float = 240,
        shakedrop: bool = False,
        init: str = "he",
    ) -> None:
        blocks = blocks_of_depth("pyramidnet", depth, layers=3)
        if not isinstance(alpha, int | float) or not 0 <= alpha < float("inf"):
            raise PskdError(f"model 'pyramidnet': alpha={alpha!r} must be a number of channels, 0 or more")
        if not isinstance(shakedrop, bool):
            raise PskdError(f"model 'pyramidnet': shakedrop={shakedrop!r} must be true or false")
        stages = []
        stage_channels = []
        total = 3 * blocks
        number = 0
        channels = 16
        stem = conv_norm(in_channels, channels, 3)
        for stage in range(3):
            stages.append(nn.Sequential())
            for stride in block_strides(stage, blocks):
                number += 1
                inner = round(16 + alpha * number / total)
                shake = ShakeDrop(1 - 0.5 * number / total) if shakedrop else None
                stages[-1].append(PyramidBlock(channels, inner, stride, shake))
                channels = 4 * inner
            stage_channels.append(channels)
        super().__init__(stem, stages, stage_channels, norm_relu(channels), num_classes, init)
