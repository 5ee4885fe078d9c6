"""Pre-activation ResNet for small images: He et al., Identity Mappings in Deep Residual Networks (ECCV 2016)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal

from torch import Tensor, nn

from pskd.workbench.models.base import (
    Init,
    Size,
    StagedNet,
    build_stages,
    check_blocks,
    conv,
    conv_norm_relu,
    family,
    norm_relu,
)


class PreActBlock(nn.Module):
    """Norm, ReLU, 3x3 convolution, twice; a new shape takes a shortcut by a 1x1 convolution after the first ReLU.

    Where the shape stays, the shortcut is ``"raw"``, what came in, or ``"preact"``, what the first ReLU made of it.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int, shortcut: str = "raw") -> None:
        super().__init__()
        self.raw = shortcut == "raw"
        self.preact = norm_relu(in_channels)
        self.residual = nn.Sequential(
            conv(in_channels, out_channels, 3, stride), norm_relu(out_channels), conv(out_channels, out_channels, 3)
        )
        same_shape = stride == 1 and in_channels == out_channels
        self.project = None if same_shape else conv(in_channels, out_channels, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        activated = self.preact(x)
        identity = x if self.raw else activated
        shortcut = identity if self.project is None else self.project(activated)
        residual: Tensor = self.residual(activated)
        return residual.add_(shortcut)


@family("preact_resnet", preact_resnet18={"blocks": (2, 2, 2, 2), "shortcut": "preact", "init": "torch"})
class PreActResNet(StagedNet):
    """Stages of ``width`` times 1, 2, 4, ... channels with so many ``blocks``; (2, 2, 2, 2) is PreAct ResNet-18.

    Norm and ReLU end the stem, and none follow the last block, as in the released code of PS-KD and CS-KD. The textbook
    network has them after the last block and not in the stem: 896 parameters more at depth 18.

    ``shortcut`` is what a block adds where the shape stays: ``"raw"``, its input, the identity mapping of the
    reference; or ``"preact"``, its input after norm and ReLU, as the released code does. ``preact_resnet18``, the
    network of the paper's tables, is the released one.
    """

    def __init__(
        self,
        num_classes: int,
        in_channels: int = 3,
        *,
        blocks: Sequence[int] = (2, 2, 2, 2),
        width: Size = 64,
        shortcut: Literal["raw", "preact"] = "raw",
        init: Init = "he",
    ) -> None:
        check_blocks(blocks)
        channels = [width * 2**stage for stage in range(len(blocks))]
        stages = build_stages(partial(PreActBlock, shortcut=shortcut), width, channels, blocks)
        super().__init__(conv_norm_relu(in_channels, width, 3), stages, channels, nn.Identity(), num_classes, init)
