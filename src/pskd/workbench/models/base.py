"""What all families share: the shape of a network, its building bricks and the checks of its options."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pskd.errors import PskdError
from pskd.settings import Range
from pskd.workbench import registry

Family = TypeVar("Family", bound=Callable[..., nn.Module])
# Papers and their code differ in these, so a published name only presets them: an option can still change them.
PRESET = frozenset({"init", "shortcut"})
Init = Literal["he", "he_fc", "torch"]
Size = Annotated[int, Range(ge=1)]  # the memory is the upper bound


def family(name: str, **published: Mapping[str, Any]) -> Callable[[Family], Family]:
    """Register a family of networks, and its published members by the options that their names fix or preset."""

    def decorate(build: Family) -> Family:
        registry.models.register(name)(build)
        for member, options in published.items():
            registry.models.register(member)(partial(build, **options))
        return build

    return decorate


class StagedNet(nn.Module):
    """An image classifier: ``stem``, ``stages``, ``norm``, the mean over the pixels, ``fc``.

    Images (B, C, H, W) go in and logits (B, num_classes) come out, for all H and W of which the strides leave a pixel.
    Channels-last images stay channels-last up to the mean.

    A detector runs ``stem`` and then one stage after the other: the map after ``stages[i]`` has ``stage_channels[i]``
    channels and a pixel for every ``stage_strides[i]`` pixels of the image. ``norm`` is what comes between the last
    stage and the mean: batch norm and ReLU in some families, nothing in the others.

    ``init`` is how the weights start. ``"he"``: convolutions normal with variance 2 / (K^2 out_channels), K their size
    (He's, by fan-out), ``fc`` as PyTorch makes it. ``"he_fc"``: ``fc`` too, with variance 2 / in_features and bias 0.
    ``"torch"``: everything as PyTorch makes it, uniform with variance 1 / (3 fan-in).
    """

    def __init__(
        self,
        stem: nn.Module,
        stages: Sequence[nn.Module],
        stage_channels: Sequence[int],
        norm: nn.Module,
        num_classes: int,
        init: Init,
    ) -> None:
        super().__init__()
        self.stem = stem
        self.stages = nn.Sequential(*stages)
        self.stage_channels = tuple(stage_channels)
        self.stage_strides = tuple(2**stage for stage in range(len(stages)))
        self.norm = norm
        self.fc = nn.Linear(stage_channels[-1], num_classes)
        for module in self.modules() if init != "torch" else ():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        if init == "he_fc":
            nn.init.kaiming_normal_(self.fc.weight, nonlinearity="relu")
            nn.init.zeros_(self.fc.bias)

    def forward_features(self, images: Tensor) -> Tensor:
        """The map whose pixels are averaged for ``fc``: (B, stage_channels[-1], H/s, W/s), s = stage_strides[-1]."""
        features: Tensor = self.norm(self.stages(self.stem(images)))
        return features

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.forward_features(images).mean((2, 3)))
        return logits


def conv(in_channels: int, out_channels: int, size: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    """A convolution without bias that keeps H and W, or divides them by the stride, rounding up."""
    return nn.Conv2d(in_channels, out_channels, size, stride, padding=size // 2, groups=groups, bias=False)


def norm_relu(channels: int) -> nn.Sequential:
    return nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU(inplace=True))


def conv_norm(in_channels: int, out_channels: int, size: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(conv(in_channels, out_channels, size, stride, groups), nn.BatchNorm2d(out_channels))


def conv_norm_relu(in_channels: int, out_channels: int, size: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return conv_norm(in_channels, out_channels, size, stride, groups).append(nn.ReLU(inplace=True))


def build_stages(
    block: Callable[[int, int, int], nn.Module], in_channels: int, stage_channels: Sequence[int], blocks: Sequence[int]
) -> list[nn.Sequential]:
    """The stages of a network, of so many ``blocks`` each; ``block(in_channels, out_channels, stride)`` builds one.

    The first block of every stage but the first halves the map.
    """
    stages = []
    for stage, (out_channels, count) in enumerate(zip(stage_channels, blocks, strict=True)):
        stages.append(nn.Sequential())
        for number in range(count):
            stages[-1].append(block(in_channels, out_channels, 2 if stage > 0 and number == 0 else 1))
            in_channels = out_channels
    return stages


class _AddZeroPadded(torch.autograd.Function):
    """Neither the padded shortcut nor a copy of the gradient ever exists."""

    @staticmethod
    def forward(ctx: Any, residual: Tensor, shortcut: Tensor) -> Tensor:
        ctx.channels = shortcut.shape[1]
        residual[:, : ctx.channels] += shortcut
        ctx.mark_dirty(residual)
        return residual

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        return grad, grad[:, : ctx.channels]


def add_zero_padded(residual: Tensor, shortcut: Tensor) -> Tensor:
    """Add ``shortcut`` (B, c, H, W) to the first c channels of ``residual`` (B, C >= c, H, W), in place."""
    if residual.shape == shortcut.shape:
        return residual.add_(shortcut)
    if torch.jit.is_tracing():  # type: ignore[attr-defined,no-untyped-call]  # which cannot look into a Function
        return residual + F.pad(shortcut, (0, 0, 0, 0, 0, residual.shape[1] - shortcut.shape[1]))
    total: Tensor = _AddZeroPadded.apply(residual, shortcut)
    return total


def check_blocks(blocks: Sequence[int]) -> None:
    """``blocks`` must give every stage a positive number of blocks."""
    if not isinstance(blocks, list | tuple) or not blocks or not all(isinstance(n, int) and n > 0 for n in blocks):
        raise PskdError(f"blocks={blocks!r} must list a positive number of blocks per stage")


def blocks_of_depth(depth: int, layers: int) -> int:
    """Blocks per stage of a network of ``depth`` layers: stem, three equal stages of blocks of ``layers``, fc."""
    step = 3 * layers
    if not isinstance(depth, int) or depth < step + 2 or (depth - 2) % step:
        raise PskdError(f"depth={depth!r} must be {step} n + 2 with n >= 1: {step + 2}, {2 * step + 2}, ...")
    return (depth - 2) // step
