"""Residual networks for small images: He et al., Deep Residual Learning for Image Recognition (CVPR 2016)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from pskd.workbench.models.base import (
    Init,
    Size,
    StagedNet,
    add_zero_padded,
    blocks_of_depth,
    build_stages,
    check_blocks,
    conv_norm,
    conv_norm_relu,
    family,
)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions; the shortcut has no weights: it subsamples, and its missing channels count as zero."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.halves = stride == 2
        self.residual = nn.Sequential(
            conv_norm_relu(in_channels, out_channels, 3, stride), conv_norm(out_channels, out_channels, 3)
        )

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x[:, :, ::2, ::2] if self.halves else x
        return F.relu_(add_zero_padded(self.residual(x), shortcut))


class Bottleneck(nn.Module):
    """1x1, 3x3 (in groups) and 1x1 convolution; where the shape changes, the shortcut is a 1x1 convolution."""

    def __init__(self, in_channels: int, inner: int, out_channels: int, stride: int, groups: int = 1) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            conv_norm_relu(in_channels, inner, 1),
            conv_norm_relu(inner, inner, 3, stride, groups),
            conv_norm(inner, out_channels, 1),
        )
        same_shape = stride == 1 and in_channels == out_channels
        self.shortcut = nn.Identity() if same_shape else conv_norm(in_channels, out_channels, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu_(self.residual(x).add_(self.shortcut(x)))


@family("resnet", resnet8={"depth": 8}, resnet20={"depth": 20}, resnet56={"depth": 56})
class ResNet(StagedNet):
    """The CIFAR networks: three stages of basic blocks, ``depth`` = 6 n + 2, channels ``width`` times 1, 2, 4."""

    def __init__(
        self, num_classes: int, in_channels: int = 3, *, depth: int = 20, width: Size = 16, init: Init = "he"
    ) -> None:
        blocks = blocks_of_depth(depth, layers=2)
        channels = [width, 2 * width, 4 * width]
        stages = build_stages(BasicBlock, width, channels, [blocks] * 3)
        super().__init__(conv_norm_relu(in_channels, width, 3), stages, channels, nn.Identity(), num_classes, init)


@family("bottleneck_resnet", resnet101={"blocks": (3, 4, 23, 3), "init": "torch"})
class BottleneckResNet(StagedNet):
    """The ImageNet networks with a 3x3 stem of stride 1, for 32x32 images.

    ``blocks`` are per stage: (3, 4, 6, 3) is ResNet-50, (3, 4, 23, 3) ResNet-101. ``width`` is the inner width of the
    first stage's blocks; it doubles with every stage. A block puts out four times its inner width.
    """

    def __init__(
        self,
        num_classes: int,
        in_channels: int = 3,
        *,
        blocks: Sequence[int] = (3, 4, 6, 3),
        width: Size = 64,
        init: Init = "he",
    ) -> None:
        def block(channels: int, out_channels: int, stride: int) -> Bottleneck:
            return Bottleneck(channels, out_channels // 4, out_channels, stride)

        check_blocks(blocks)
        channels = [4 * width * 2**stage for stage in range(len(blocks))]
        stages = build_stages(block, width, channels, blocks)
        super().__init__(conv_norm_relu(in_channels, width, 3), stages, channels, nn.Identity(), num_classes, init)
