"""Progressive self-knowledge distillation for PyTorch: the public names of the core, loaded when first used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Public name -> the module it lives in. Loading on first use keeps `pskd --help` and `pskd.schedules` free of torch.
_HOME = {
    "PSKD": "pskd.methods.ps_kd",
    "Loss": "pskd.methods.base",
    "PredictionBank": "pskd.memory.bank",
    "Snapshot": "pskd.memory.snapshot",
    "Indexed": "pskd.indexed",
    "LinearHead": "pskd.linear_head",
    "soft_cross_entropy": "pskd.targets",
}
_MODULES = ("metrics", "models", "schedules")

__all__ = [
    "PSKD",
    "Indexed",
    "LinearHead",
    "Loss",
    "PredictionBank",
    "Snapshot",
    "metrics",
    "models",
    "schedules",
    "soft_cross_entropy",
]

if TYPE_CHECKING:
    from pskd import metrics, models, schedules
    from pskd.indexed import Indexed
    from pskd.linear_head import LinearHead
    from pskd.memory.bank import PredictionBank
    from pskd.memory.snapshot import Snapshot
    from pskd.methods.base import Loss
    from pskd.methods.ps_kd import PSKD
    from pskd.targets import soft_cross_entropy


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    if name in _MODULES:
        return import_module(f"pskd.{name}")
    raise AttributeError(f"module 'pskd' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
