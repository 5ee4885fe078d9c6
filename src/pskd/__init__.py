"""Progressive self-knowledge distillation for PyTorch: the public names of the core, loaded when first used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

# Public name -> the module it lives in. Loading on first use keeps `pskd --help` and `pskd.schedules` free of torch.
_HOME = {
    "CSKD": "pskd.methods",
    "Hard": "pskd.methods",
    "LabelSmoothing": "pskd.methods",
    "Loss": "pskd.methods",
    "Method": "pskd.methods",
    "PSKD": "pskd.methods",
    "SameClassPartners": "pskd.methods",
    "TFKD": "pskd.methods",
    "BYOT": "pskd.methods",
    "DDGSD": "pskd.methods",
    "DLB": "pskd.methods",
    "CRL": "pskd.methods",
    "ELR": "pskd.methods",
    "OLS": "pskd.methods",
    "SAT": "pskd.methods",
    "DisturbLabel": "pskd.methods",
    "Focal": "pskd.methods",
    "MaxSup": "pskd.methods",
    "MeanTeacher": "pskd.methods",
    "TemporalEnsembling": "pskd.methods",
    "ZipfLS": "pskd.methods",
    "Memory": "pskd.memory",
    "PredictionBank": "pskd.memory",
    "Snapshot": "pskd.memory",
    "Indexed": "pskd.indexed",
    "EpochSampler": "pskd.sampler",
    "LinearHead": "pskd.linear_head",
    "soft_cross_entropy": "pskd.door",
    "Run": "pskd.use.run",
    "export": "pskd.api",
    "load": "pskd.api",
    "train": "pskd.api",
    "register_data": "pskd.registry",
    "register_method": "pskd.registry",
    "register_metric": "pskd.registry",
    "register_model": "pskd.registry",
    "register_task": "pskd.registry",
}
_MODULES = ("memory", "methods", "metrics", "models", "schedules")

__all__ = [
    "BYOT",
    "CRL",
    "CSKD",
    "DDGSD",
    "DLB",
    "ELR",
    "OLS",
    "PSKD",
    "SAT",
    "TFKD",
    "DisturbLabel",
    "EpochSampler",
    "Focal",
    "Hard",
    "Indexed",
    "LabelSmoothing",
    "LinearHead",
    "Loss",
    "MaxSup",
    "MeanTeacher",
    "Memory",
    "Method",
    "PredictionBank",
    "Run",
    "SameClassPartners",
    "Snapshot",
    "TemporalEnsembling",
    "ZipfLS",
    "export",
    "load",
    "memory",
    "methods",
    "metrics",
    "models",
    "register_data",
    "register_method",
    "register_metric",
    "register_model",
    "register_task",
    "schedules",
    "soft_cross_entropy",
    "train",
]

if TYPE_CHECKING:
    from pskd import memory, methods, metrics, models, schedules
    from pskd.api import export, load, train
    from pskd.door import soft_cross_entropy
    from pskd.indexed import Indexed
    from pskd.linear_head import LinearHead
    from pskd.memory import Memory, PredictionBank, Snapshot
    from pskd.methods import (
        BYOT,
        CRL,
        CSKD,
        DDGSD,
        DLB,
        ELR,
        OLS,
        PSKD,
        SAT,
        TFKD,
        DisturbLabel,
        Focal,
        Hard,
        LabelSmoothing,
        Loss,
        MaxSup,
        MeanTeacher,
        Method,
        SameClassPartners,
        TemporalEnsembling,
        ZipfLS,
    )
    from pskd.registry import register_data, register_method, register_metric, register_model, register_task
    from pskd.sampler import EpochSampler
    from pskd.use.run import Run


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    if name in _MODULES:
        return import_module(f"pskd.{name}")
    raise AttributeError(f"module 'pskd' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
