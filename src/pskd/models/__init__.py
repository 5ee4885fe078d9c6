"""Models by name: `create(name, num_classes)` makes one, `names()` lists them.

A family takes options; a published network is a family with some of its options settled by the name:

    create("preact_resnet18", num_classes=100)
    create("resnet8", num_classes=10, in_channels=1, width=32)
    create("densenet", num_classes=100, blocks=[2, 2, 2, 2], growth=12)
    create("torchvision:resnet50", num_classes=1000)
    create("timm:convnext_tiny", num_classes=1000)
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from pskd.errors import PskdError
from pskd.models.base import StagedNet, check_positive
from pskd.models.densenet import DenseNet
from pskd.models.preact_resnet import PreActResNet
from pskd.models.pyramidnet import PyramidNet
from pskd.models.resnet import BottleneckResNet, ResNet
from pskd.models.resnext import ResNeXt

__all__ = ["StagedNet", "create", "names"]

_FAMILIES: dict[str, Callable[..., StagedNet]] = {
    "bottleneck_resnet": BottleneckResNet,
    "densenet": DenseNet,
    "preact_resnet": PreActResNet,
    "pyramidnet": PyramidNet,
    "resnet": ResNet,
    "resnext": ResNeXt,
}

# Name -> its family and the options that the name settles; the family's other options stay open.
_PRESETS: dict[str, tuple[str, dict[str, Any]]] = {
    "densenet121": ("densenet", {"blocks": (6, 12, 24, 16)}),
    "preact_resnet18": ("preact_resnet", {"blocks": (2, 2, 2, 2)}),
    "pyramidnet20": ("pyramidnet", {"depth": 20, "alpha": 48}),
    "pyramidnet200": ("pyramidnet", {"depth": 200, "alpha": 240}),
    "resnet8": ("resnet", {"depth": 8}),
    "resnet20": ("resnet", {"depth": 20}),
    "resnet56": ("resnet", {"depth": 56}),
    "resnet101": ("bottleneck_resnet", {"blocks": (3, 4, 23, 3)}),
    "resnext29_8x64d": ("resnext", {"depth": 29, "cardinality": 8, "width": 64}),
}


def names() -> list[str]:
    """All names that `create` knows by itself; torchvision's and timm's models come on top, by prefix."""
    return sorted([*_FAMILIES, *_PRESETS])


def create(name: str, num_classes: int, in_channels: int = 3, **options: Any) -> nn.Module:
    """A new model with random weights, drawn from torch's global generator.

    Args:
        name: one of `names()`, or ``torchvision:<model>`` or ``timm:<model>``.
        num_classes: the number of logits.
        in_channels: the channels of the images.
        **options: the family's own, such as ``width`` or ``depth``; a library's model takes what its builder takes.
    """
    check_positive(name, num_classes=num_classes, in_channels=in_channels)
    if ":" in name:
        from pskd.models.external import create_external

        return create_external(name, num_classes, in_channels, options)

    family, settled = _PRESETS.get(name, (name, {}))
    if family not in _FAMILIES:
        nearest = difflib.get_close_matches(name, names(), n=1)
        hint = f"the nearest is {nearest[0]!r}; " if nearest else ""
        raise PskdError(
            f"model {name!r} is unknown: {hint}pskd.models.names() lists all, "
            "torchvision:<model> and timm:<model> take those libraries' models"
        )
    of_family = [p.name for p in inspect.signature(_FAMILIES[family]).parameters.values() if p.kind is p.KEYWORD_ONLY]
    allowed = [option for option in of_family if option not in settled]
    for option in options:
        if option not in allowed:
            others = f"; the family {family!r} takes {', '.join(of_family)}" if settled else ""
            raise PskdError(f"model {name!r} takes no option {option!r}, only: {', '.join(allowed) or 'none'}{others}")
    return _FAMILIES[family](num_classes, in_channels, **settled, **options)
