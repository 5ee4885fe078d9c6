"""A run's settings: types, defaults, and how a recipe and `key=value` overrides become one configuration.

`base.py` has what all tasks share. A task's settings are declared in its room, those of a method or data in its file.
`classes.py` puts them together, `resolve.py` fills them in, `explain.py` says what is wrong.
"""

from pskd.workbench.config.base import Config as Config
from pskd.workbench.config.base import Interval as Interval
from pskd.workbench.config.base import MethodConfig as MethodConfig
from pskd.workbench.config.base import OptimConfig as OptimConfig
from pskd.workbench.config.base import Section as Section
from pskd.workbench.config.classes import places as places
from pskd.workbench.config.classes import written as written
from pskd.workbench.config.explain import describe as describe
from pskd.workbench.config.identity import identity as identity
from pskd.workbench.config.resolve import changed as changed
from pskd.workbench.config.resolve import differences as differences
from pskd.workbench.config.resolve import flat as flat
from pskd.workbench.config.resolve import long_key as long_key
from pskd.workbench.config.resolve import parse_value as parse_value
from pskd.workbench.config.resolve import resolve as resolve
from pskd.workbench.config.resolve import validated as validated
from pskd.workbench.config.yaml_file import read_yaml as read_yaml
