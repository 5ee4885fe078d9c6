"""The class of a configuration: that of its task, with the settings of its method and of what loads its data."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ConfigDict, create_model

from pskd.errors import PskdError
from pskd.settings import How, Place, Setting, settings_of
from pskd.workbench import registry
from pskd.workbench.config.base import Config, MethodConfig, Section, UncheckedConfig
from pskd.workbench.config.methods import method_settings

DEFAULT_TASK, DEFAULT_METHOD = "classification", "ps_kd"


def task_class(name: str, *, allow_code: bool = False) -> Any:
    """The task of this name; None if it is code that may not be imported."""
    return _load(registry.tasks, name, allow_code)


def config_class(task: str, method: str | None, data: str | None, *, allow_code: bool = False) -> type[Config]:
    """The configuration class for a task, its method and its data; None stands for the task's default.

    Without ``allow_code``, code named as ``package.module:attribute`` is not imported; its settings are not checked.
    """
    kind = task_class(task, allow_code=allow_code)
    if kind is None:
        return UncheckedConfig
    method = method or kind.default_method or DEFAULT_METHOD
    data = data or kind.Config.model_fields["data"].annotation.model_fields["name"].default
    loader = None if kind.data_sets is None else _load(kind.data_sets, str(data), allow_code)
    method_kind = _load(registry.methods, method, allow_code)
    if method_kind is not None and (reason := kind.refuses(method_kind)) is not None:
        raise PskdError(f"method={method}: {reason}")
    return _build_class(kind.Config, method, method_kind, loader)


class _CheckedMethod(MethodConfig):
    model_config = ConfigDict(frozen=True, extra="forbid")


@functools.cache
def _build_class(base: type[Config], name: str, method: Any, loader: Any) -> type[Config]:
    method_section = method_class(name, method)
    fields: dict[str, Any] = {"method": (method_section, method_section(name=name))}
    section: Any = base.model_fields["data"].annotation
    if loader is not None and (own := settings_of(loader, leave_out=section.model_fields)):
        section = create_model(section.__name__, __base__=section, __doc__=section.__doc__, **_fields(own))
        fields["data"] = (section, section())
    return create_model(base.__name__, __base__=base, **fields)


@functools.cache
def method_class(name: str, method: Any) -> type[MethodConfig]:
    """The class of a method's settings; without the method's class its settings are not checked."""
    if method is None:
        return MethodConfig
    fields = {"name": (str, name), **_fields(method_settings(method))}
    return create_model(f"{method.__name__}Config", __base__=_CheckedMethod, __doc__=method.__doc__, **fields)


def places(config: Section) -> frozenset[str]:
    """Settings that say only how a run is made or where its parts are, such as ``train.device``."""
    return _marked(type(config), lambda mark: isinstance(mark, How | Place))


def written(config: Section) -> frozenset[str]:
    """Settings that name files outside its folder which a run writes."""
    return _marked(type(config), lambda mark: isinstance(mark, Place) and mark.written)


def _marked(section: Any, wanted: Callable[[Any], bool], prefix: str = "") -> frozenset[str]:
    keys: set[str] = set()
    for name, field in section.model_fields.items():
        if any(map(wanted, field.metadata)):
            keys.add(prefix + name)
        if hasattr(field.annotation, "model_fields"):
            keys |= _marked(field.annotation, wanted, prefix=f"{prefix}{name}.")
    return frozenset(keys)


def _load(names: registry.Registry, name: str, allow_code: bool) -> Any:
    if registry.is_code(name) and not allow_code and not names.is_loaded(name):
        return None
    return names.load(name, allow_code=allow_code)


def _fields(settings: Mapping[str, Setting]) -> dict[str, Any]:
    """What ``create_model`` makes of declared settings."""
    return {each.name: (each.annotation, ... if each.required else each.default) for each in settings.values()}
