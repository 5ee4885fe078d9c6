"""ResNeXt for small images: Xie et al., Aggregated Residual Transformations for Deep Neural Networks (CVPR 2017)."""

from __future__ import annotations

from torch import nn

from pskd.workbench.models.base import StagedNet, block_strides, blocks_of_depth, check_positive, conv_norm_relu, family
from pskd.workbench.models.resnet import Bottleneck


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
        cardinality: int = 8,
        width: int = 64,
        init: str = "he",
    ) -> None:
        check_positive("resnext", cardinality=cardinality, width=width)
        blocks = blocks_of_depth("resnext", depth, layers=3)
        stage_channels = [256, 512, 1024]
        stages = []
        channels = 64
        stem = conv_norm_relu(in_channels, channels, 3)
        for stage, out_channels in enumerate(stage_channels):
            inner = cardinality * width * 2**stage
            stages.append(nn.Sequential())
            for stride in block_strides(stage, blocks):
                stages[-1].append(Bottleneck(channels, inner, out_channels, stride, groups=cardinality))
                channels = out_channels
        super().__init__(stem, stages, stage_channels, nn.Identity(), num_classes, init)
