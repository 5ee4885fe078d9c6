"""Progressive self-knowledge distillation for PyTorch: the public names of the core, loaded when first used."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

__version__ = "0.2.0"

# Each says in its `__all__` what is public. Looked into in this order, so that the core never loads the workbench.
_ROOMS = (
    *("methods", "memory", "indexed", "sampler", "linear_head", "door"),
    *("workbench.registry", "workbench.api"),  # which need none of the workbench's libraries to be imported
)
_MODULES = {name: f"pskd.{name}" for name in ("memory", "methods", "metrics", "schedules")} | {
    "models": "pskd.workbench.models"
}


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return [*_MODULES, *(public for room in _ROOMS for public in import_module(f"pskd.{room}").__all__)]
    if name in _MODULES:
        return import_module(_MODULES[name])
    if not name.startswith("_"):
        if find_spec(f"pskd.{name}") is not None:
            return import_module(f"pskd.{name}")
        for room in _ROOMS:
            module = import_module(f"pskd.{room}")
            if name in module.__all__:
                return getattr(module, name)
    raise AttributeError(f"module 'pskd' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(["__version__", *__getattr__("__all__")])
