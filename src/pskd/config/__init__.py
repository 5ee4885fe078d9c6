"""Every setting with its type and default.

`base.py` and `run.py` hold what all tasks share, `methods.py` the methods' settings, and each task has a module of its
own. `resolve.py` makes one configuration of a recipe and `key=value` overrides.
"""

from pskd.config.base import HOW, PLACES, Interval, OptimConfig, Section
from pskd.config.methods import (
    METHODS,
    CSKDConfig,
    HardConfig,
    LabelSmoothingConfig,
    PSKDConfig,
    TFKDConfig,
)
from pskd.config.resolve import TASKS, changed, describe, differences, flat, read_yaml, resolve, validated
from pskd.config.run import Config

__all__ = [
    "HOW",
    "METHODS",
    "PLACES",
    "TASKS",
    "CSKDConfig",
    "Config",
    "HardConfig",
    "Interval",
    "LabelSmoothingConfig",
    "OptimConfig",
    "PSKDConfig",
    "Section",
    "TFKDConfig",
    "changed",
    "describe",
    "differences",
    "flat",
    "read_yaml",
    "resolve",
    "validated",
]
