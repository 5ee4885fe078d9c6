"""One registry, open to everyone: methods, models, data sets, tasks, metrics and observers by name.

    @pskd.register_model("my_net")            # in a file of your own; or unregistered: model=my_models:my_net
    def my_net(num_classes, in_channels): ...

Ours are registered by a decorator in their own file; a method by its ``name``. Packages add names by entry points of
the groups `pskd.methods`, `pskd.models`, `pskd.data` and `pskd.tasks`. A name may also be code of the user's own,
`package.module:attribute`, where the current folder counts too.

Code is imported only by `load`, which has to be told that it may: what a user's own command or recipe names may be
imported. What a run folder names may not, since a run folder may come from a stranger.
"""

from __future__ import annotations

import difflib
import os
import pkgutil
import sys
import traceback
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

from pskd.errors import PskdError

if TYPE_CHECKING:
    from pskd.metrics.catalogue import Metric

__all__ = ["register_data", "register_method", "register_metric", "register_model", "register_task"]

T = TypeVar("T")


class Registry:
    """Things of one kind by name.

    Args:
        kind: what one of them is called, in messages and as a setting: "method", "model", ...
        package: the package whose modules register ours; a module is imported when a name is asked for.
        group: of the entry points of other packages.
        what: what a thing of a user's own has to be, in words.
        fits: whether it is.
        by_name: ours are the classes of the package that have a ``name`` of their own, without a decorator.
    """

    def __init__(
        self,
        kind: str,
        package: str,
        group: str,
        what: str = "a callable",
        fits: Callable[[Any], bool] = callable,
        *,
        by_name: bool = False,
    ) -> None:
        self.kind, self.package, self.group, self.what, self.fits = kind, package, group, what, fits
        self.by_name = by_name
        self._things: dict[str, Any] = {}
        self._titles: dict[str, str] = {}

    def register(self, name: str, title: str | None = None) -> Callable[[T], T]:
        """A decorator: its class or function is known by ``name`` from then on; reports show its ``title``."""

        def decorate(thing: T) -> T:
            known = self._things.setdefault(name, thing)
            if known is not thing and _origin(known) != _origin(thing):
                raise PskdError(f"{self.kind} {name!r} is registered twice: by {_origin(known)} and {_origin(thing)}")
            self._things[name] = thing
            if title is not None:
                self._titles[name] = title
            return thing

        return decorate

    def title(self, name: str) -> str | None:
        """What the thing of this name is called in reports; None: it was registered without a title."""
        self.get(name)
        return self._titles.get(name)

    def names(self) -> list[str]:
        """All names that are registered here or by installed packages."""
        for module in self._modules():
            self._import_module(module)
        return sorted({*(name for name in self._things if not is_code(name)), *self._entry_points()})

    def find(self, name: str) -> Any:
        """The thing of this name. Code of the user's own must have been loaded before."""
        if name not in self._things:
            self._import_for(name)
        if name in self._things:
            return self._things[name]
        if (library := f"{name.partition(':')[0]}:") in self._things:
            return self._things[library]
        if name in (points := self._entry_points()):
            self._things[name] = self._fitting(name, _imported(f"{self.kind}={name}", points[name].load))
            return self._things[name]
        if is_code(name):
            raise PskdError(
                f"{self.kind}={name} names code, which is imported on your own word only: name it in your command or"
                " recipe, or add --allow-code if you trust the folder that names it"
            )
        near = difflib.get_close_matches(name, names := self.names(), 1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise PskdError(
            f"{self.kind} {name!r} is unknown; {hint}allowed are {', '.join(names)},"
            " or your own as package.module:attribute"
        )

    def get(self, name: str) -> Any | None:
        """The thing of this name, or None; nothing of the user's own is imported."""
        try:
            return self.find(name)
        except PskdError:
            return None

    def is_loaded(self, name: str) -> bool:
        return name in self._things

    def load(self, name: str, *, allow_code: bool) -> Any:
        """``find``, after importing code of the user's own if that is allowed."""
        if allow_code and is_code(name) and name not in self._things:
            self._things[name] = self._fitting(name, _code(self.kind, name))
        return self.find(name)

    def _fitting(self, name: str, thing: Any) -> Any:
        if not self.fits(thing):
            raise PskdError(f"{self.kind}={name} is not {self.what}")
        return thing

    def _import_for(self, name: str) -> None:
        """Import what registers ours: the package, the module of that name, or else all of its modules."""
        import_module(self.package)
        if name in self._things:
            return
        if name.isidentifier() and find_spec(f"{self.package}.{name}") is not None:
            self._import_module(f"{self.package}.{name}")
        elif not is_code(name):
            self.names()

    def _import_module(self, name: str) -> None:
        for thing in vars(import_module(name)).values():
            if self.by_name and self.fits(thing) and thing.__module__ == name and "name" in vars(thing):
                self.register(thing.name)(thing)

    def _modules(self) -> Iterator[str]:
        for module in pkgutil.iter_modules(import_module(self.package).__path__):
            yield f"{self.package}.{module.name}"

    def _entry_points(self) -> dict[str, Any]:
        return {point.name: point for point in entry_points(group=self.group)}


LIBRARIES = ("torchvision", "timm", "transformers", "hf")  # whose parts are named by prefix, and built by code of ours


def is_code(name: str) -> bool:
    """Whether a name is a user's own code, of the form ``package.module:attribute``."""
    module, sign, attribute = name.partition(":")
    return (
        bool(sign)
        and module not in LIBRARIES
        and all(part.isidentifier() for part in (*module.split("."), *attribute.split(".")))
    )


def _code(kind: str, name: str) -> Any:
    """Import the user's own ``package.module:attribute``; the current folder comes last among the places to look in."""
    module_name, _, attributes = name.partition(":")
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)
    thing = _imported(f"{kind}={name}", lambda: import_module(module_name))
    for attribute in attributes.split("."):
        if not hasattr(thing, attribute):
            near = difflib.get_close_matches(attribute, dir(thing), 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise PskdError(f"{kind}={name}: {module_name} has no {attribute}{hint}")
        thing = getattr(thing, attribute)
    return thing


def _imported(name: str, load: Callable[[], Any]) -> Any:
    """What ``load`` imports; an error in that code becomes one line with its place."""
    try:
        return load()
    except Exception as error:  # whatever a module does while it is imported
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = "" if "importlib" in last.filename else f" ({last.filename}, line {last.lineno})"
        text = " ".join(str(error).split())
        raise PskdError(f"{name} cannot be imported: {type(error).__name__}: {text}{place}") from error


def _origin(thing: Any) -> str:
    return f"{getattr(thing, '__module__', '?')}.{getattr(thing, '__qualname__', thing)}"


def _is_method(thing: Any) -> bool:
    return isinstance(thing, type) and hasattr(thing, "needs") and hasattr(thing, "loss")


methods = Registry("method", "pskd.methods", "pskd.methods", "a subclass of pskd.Method", _is_method, by_name=True)
models = Registry("model", "pskd.workbench.models.families", "pskd.models")
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
