"""ResNeXt for small images: Xie et al., Aggregated Residual Transformations for Deep Neural Networks (CVPR 2017)."""

from __future__ import annotations

from torch import nn

from pskd.workbench.models.base import Init, Size, StagedNet, blocks_of_depth, build_stages, conv_norm_relu, family
from pskd.workbench.models.families.resnet import Bottleneck


@family("resnext", resnext29_8x64d={"depth": 29, "cardinality": 8, "width": 64, "init": "he_fc"})
class ResNeXt(StagedNet):
    """Three stages of bottlenecks whose 3x3 convolution is grouped; ``depth`` = 9 n + 2.

    A block's 3x3 convolution has ``cardinality`` groups of ``width`` channels in the first stage, and of twice and four
    times as many in the next two. Between the blocks there are always 256, 512 and 1024 channels.
    """

    def __init__(
        self,
        num_classes: int,
        in_channels: int = 3,
        *,
        depth: int = 29,
        cardinality: Size = 8,
        width: Size = 64,
        init: Init = "he",
    ) -> None:
        def block(channels: int, out_channels: int, stride: int) -> Bottleneck:
            inner = cardinality * width * out_channels // 256
            return Bottleneck(channels, inner, out_channels, stride, groups=cardinality)

        blocks = blocks_of_depth(depth, layers=3)
        stem, channels = conv_norm_relu(in_channels, 64, 3), [256, 512, 1024]
        stages = build_stages(block, 64, channels, [blocks] * 3)
        super().__init__(stem, stages, channels, nn.Identity(), num_classes, init)
