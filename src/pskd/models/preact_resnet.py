"""Pre-activation ResNet for small images: He et al., Identity Mappings in Deep Residual Networks (ECCV 2016)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from pskd.models.base import (
    StagedNet,
    block_strides,
    check_blocks,
    check_positive,
    conv,
    conv_norm_relu,
    family,
    norm_relu,
)


class PreActBlock(nn.Module):
    """Norm, ReLU, 3x3 convolution, twice; a new shape takes a shortcut by a 1x1 convolution after the first ReLU."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.preact = norm_relu(in_channels)
        self.residual = nn.Sequential(
            conv(in_channels, out_channels, 3, stride), norm_relu(out_channels), conv(out_channels, out_channels, 3)
        )
        same_shape = stride == 1 and in_channels == out_channels
        self.project = None if same_shape else conv(in_channels, out_channels, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        activated = self.preact(x)
        shortcut = x if self.project is None else self.project(activated)
        residual: Tensor = self.residual(activated)
        return residual.add_(shortcut)


@family("preact_resnet", preact_resnet18={"blocks": (2, 2, 2, 2)})
class PreActResNet(StagedNet):
    """Stages of ``width`` times 1, 2, 4, ... channels with so many ``blocks``; (2, 2, 2, 2) is PreAct ResNet-18.

    This is the network of the released PS-KD code: norm and ReLU end the stem, and none follow the last block. The
    textbook network has them after the last block and not in the stem: 896 parameters more at depth 18.
    """

    def __init__(
        self, num_classes: int, in_channels: int = 3, *, blocks: Sequence[int] = (2, 2, 2, 2), width: int = 64
    ) -> None:
        check_blocks("preact_resnet", blocks)
        check_positive("preact_resnet", width=width)
        stages = []
        stage_channels = [width * 2**stage for stage in range(len(blocks))]
        channels = width
        for stage, (count, out_channels) in enumerate(zip(blocks, stage_channels, strict=True)):
            stages.append(nn.Sequential())
            for stride in block_strides(stage, count):
                stages[-1].append(PreActBlock(channels, out_channels, stride))
                channels = out_channels
        super().__init__(conv_norm_relu(in_channels, width, 3), stages, stage_channels, nn.Identity(), num_classes)
