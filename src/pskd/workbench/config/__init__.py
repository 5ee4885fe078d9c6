"""A run's settings: types, defaults, and how a recipe and `key=value` overrides become one configuration.

`base.py` and `run.py` hold what all tasks share. The rest is declared where the thing is, a task's settings in its room
and a method's in its file; `classes.py` puts them together, `resolve.py` fills them, `explain.py` says what is wrong.
"""

from pskd.workbench.config.base import Interval, MethodConfig, OptimConfig, Section
from pskd.workbench.config.classes import config_class, how, method_class, places, written
from pskd.workbench.config.explain import describe
from pskd.workbench.config.identity import identity
from pskd.workbench.config.resolve import changed, differences, flat, long_key, parse_value, resolve, validated
from pskd.workbench.config.run import Config
from pskd.workbench.config.yaml_file import read_yaml

__all__ = [
    "Config",
    "Interval",
    "MethodConfig",
    "OptimConfig",
    "Section",
    "changed",
    "config_class",
    "describe",
    "differences",
    "flat",
    "how",
    "identity",
    "long_key",
    "method_class",
    "parse_value",
    "places",
    "read_yaml",
    "resolve",
    "validated",
    "written",
]
