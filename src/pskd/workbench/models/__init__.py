"""Models by name: `create(name, num_classes)` makes one, `names()` lists them.

A family takes options; a published network is a family with some options fixed by its name:

    create("preact_resnet18", num_classes=100)
    create("resnet8", num_classes=10, in_channels=1, width=32)
    create("densenet", num_classes=100, blocks=[2, 2, 2, 2], growth=12)
    create("torchvision:resnet50", num_classes=1000)
    create("timm:convnext_tiny", num_classes=1000)

A user's own model is a callable ``(num_classes, in_channels, **options) -> nn.Module``, named `module:callable`.
"""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from pskd.errors import PskdError
from pskd.settings import check_arguments
from pskd.workbench import registry
from pskd.workbench.models.base import PRESET, Size, StagedNet
from pskd.workbench.models.external import LIBRARIES, create_external

__all__ = ["StagedNet", "create", "names"]


def names() -> list[str]:
    """All names that `create` knows by itself; torchvision's and timm's models come on top, by prefix."""
    return registry.models.names()


def create(name: str, num_classes: Size, in_channels: Size = 3, **options: Any) -> nn.Module:
    """A new model with random weights, drawn from torch's global generator.

    Args:
        name: one of `names()`, ``torchvision:<model>`` or ``timm:<model>``, or a user's own code that was loaded.
        num_classes: the number of logits.
        in_channels: the channels of the images.
        **options: the family's own, such as ``width`` or ``depth``; a library's model takes what its builder takes.
    """
    library = name.partition(":")[0]
    if library in LIBRARIES:
        return create_external(name, num_classes, in_channels, options)
    if ":" in name and not registry.is_code(name):
        raise PskdError(f"model {name!r}: the prefix {library!r} is unknown, allowed are: {', '.join(LIBRARIES)}")
    build = registry.models.find(name)
    try:
        check_arguments(create, {"num_classes": num_classes, "in_channels": in_channels})
        _check_options(build, options)
        model = build(num_classes, in_channels, **options)
    except PskdError as error:
        raise PskdError(f"model {name!r}: {error}") from error
    if not isinstance(model, nn.Module):
        raise PskdError(f"model={name} must return a torch.nn.Module, got {type(model).__name__}")
    return model


def _check_options(build: Any, options: dict[str, Any]) -> None:
    """Refuse an option that a family does not have, or whose value a published name fixes."""
    family = getattr(build, "func", build)
    parameters = list(inspect.signature(family).parameters.values())[2:]
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        fixed = getattr(build, "keywords", {}).keys() - PRESET
        known = [parameter.name for parameter in parameters]
        allowed = [option for option in known if option not in fixed]
        unknown = [option for option in options if option not in allowed]
        if unknown:
            others = f"; its family takes {', '.join(known)}" if fixed else ""
            raise PskdError(f"there is no option {unknown[0]!r}, only: {', '.join(allowed) or 'none'}{others}")
    if isinstance(family, type) and issubclass(family, StagedNet):
        check_arguments(family, options)
