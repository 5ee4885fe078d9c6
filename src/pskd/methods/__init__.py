"""How a model is taught: one file for each method. Public are the classes that are registered here."""

from importlib import import_module
from pkgutil import iter_modules

from pskd.methods.base import Loss, Method
from pskd.methods.cs_kd import SameClassPartners

_found = {"Loss": Loss, "Method": Method, "SameClassPartners": SameClassPartners}
for _module in iter_modules(__path__):
    for _thing in vars(import_module(f"{__name__}.{_module.name}")).values():
        if isinstance(_thing, type) and issubclass(_thing, Method) and "name" in vars(_thing):
            _found[_thing.__name__] = _thing
globals().update(_found)
__all__ = sorted(_found)
