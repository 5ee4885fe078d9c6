"""One registry, open to everyone: methods, models, data sets, tasks, metrics and observers by name.

    @pskd.register_method("my_loss")          # in a file of your own; or unregistered: method=my_methods:MyLoss
    class MyLoss(pskd.Method): ...

Packages add to it by entry points of the groups `pskd.methods`, `pskd.models`, `pskd.data` and `pskd.tasks`. How names
are found, and when code is imported, is said in `pskd.names`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pskd.names import Registry as Registry
from pskd.names import is_code as is_code
from pskd.names import methods as methods

if TYPE_CHECKING:
    from pskd.metrics.catalogue import Metric

__all__ = ["register_data", "register_method", "register_metric", "register_model", "register_task"]

models = Registry("model", "pskd.workbench.models", "pskd.models")
data = Registry("data", "pskd.workbench.data", "pskd.data")
scenes = Registry("data", "pskd.workbench.data.detection", "pskd.data")  # of detection
texts = Registry("data", "pskd.workbench.data.text", "pskd.data")  # of translation
tasks = Registry(
    "task",
    "pskd.workbench.tasks",
    "pskd.tasks",
    "a subclass of pskd.workbench.tasks.base.Task",
    lambda thing: isinstance(thing, type) and hasattr(thing, "Config") and hasattr(thing, "Predictor"),
)
observers = Registry("observer", "pskd.workbench.analysis", "pskd.observers")

register_method = methods.register
register_model = models.register
register_data = data.register
register_task = tasks.register


def register_metric(name: str, metric: Metric) -> None:
    """Say how a metric is written, and which way is better."""
    from pskd.metrics.catalogue import METRICS

    METRICS[name] = metric
