"""The class of a configuration: that of its task, with the settings of its method and of what loads its data.

These are declared where the thing is: a method's are the typed keywords of its constructor, and so are the data's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Annotated, Any, get_args, get_origin

from pydantic import ConfigDict, Field, create_model

from pskd.errors import PskdError
from pskd.settings import How, Place, Range, Setting, settings_of
from pskd.workbench import registry
from pskd.workbench.config.base import MethodConfig, Section
from pskd.workbench.config.methods import method_settings
from pskd.workbench.config.run import Config, UncheckedConfig

DEFAULT_TASK, DEFAULT_METHOD = "classification", "ps_kd"


def task_class(name: str, *, allow_code: bool = False) -> Any:
    """The task of this name; None for code that is not to be imported."""
    return _known(registry.tasks, name, allow_code)


def config_class(task: str, method: str | None, data: str | None, *, allow_code: bool = False) -> type[Config]:
    """The class of the configurations of these three; the method's and the data's default to the task's own.

    Without ``allow_code``, what is named as ``package.module:attribute`` and was not imported before is not: its
    settings are then taken as they are.
    """
    kind = task_class(task, allow_code=allow_code)
    if kind is None:
        return UncheckedConfig
    method = method or kind.default_method or DEFAULT_METHOD
    section = kind.Config.model_fields["data"].annotation
    data = data or section.model_fields["name"].default
    loader = None if kind.data_sets is None else _known(kind.data_sets, str(data), allow_code)
    taught = _known(registry.methods, method, allow_code)
    if taught is not None and (reason := kind.refuses(taught)) is not None:
        raise PskdError(f"method={method}: {reason}")
    return _assembled(kind.Config, method, taught, loader)


class _Checked(MethodConfig):
    model_config = ConfigDict(frozen=True, extra="forbid")


@functools.cache
def _assembled(base: type[Config], name: str, method: Any, loader: Any) -> type[Config]:
    taught = method_class(name, method)
    fields: dict[str, Any] = {"method": (taught, taught(name=name))}
    if loader is not None:
        fixed = base.model_fields["data"].annotation
        assert isinstance(fixed, type)
        if own := settings_of(loader, leave_out=set(fixed.model_fields)):
            section = create_model(fixed.__name__, __base__=fixed, __doc__=fixed.__doc__, **_fields(own))
            fields["data"] = (section, section())
    return create_model(base.__name__, __base__=base, **fields)


@functools.cache
def method_class(name: str, method: Any) -> type[MethodConfig]:
    """The settings of a method; of one that was not imported, any."""
    if method is None:
        return MethodConfig
    fields = {"name": (str, name), **_fields(method_settings(method))}
    return create_model(f"{method.__name__}Config", __base__=_Checked, __doc__=method.__doc__, **fields)


def marked(config: Section | type[Section], wanted: Callable[[Any], bool], prefix: str = "") -> frozenset[str]:
    """The settings of a configuration whose fields carry a wanted mark, such as ``train.device``."""
    found: set[str] = set()
    for name, field in (config if isinstance(config, type) else type(config)).model_fields.items():
        if any(map(wanted, field.metadata)):
            found.add(prefix + name)
        inner = getattr(config, name) if not isinstance(config, type) else field.annotation
        if isinstance(inner, Section) or (isinstance(inner, type) and issubclass(inner, Section)):
            found |= marked(inner, wanted, prefix=f"{prefix}{name}.")
    return frozenset(found)


def how(config: Section | type[Section]) -> frozenset[str]:
    """Settings that say how a run is made."""
    return marked(config, lambda mark: isinstance(mark, How))


def places(config: Section | type[Section]) -> frozenset[str]:
    """Settings that say how a run is made or where its parts are: it can be resumed with others."""
    return marked(config, lambda mark: isinstance(mark, How | Place))


def written(config: Section | type[Section]) -> frozenset[str]:
    """Settings that name files which a run writes, outside of its folder."""
    return marked(config, lambda mark: isinstance(mark, Place) and mark.written)


def _known(names: registry.Registry, name: str, allow_code: bool) -> Any:
    if registry.is_code(name) and not allow_code and not names.is_loaded(name):
        return None
    return names.load(name, allow_code=allow_code)


def _fields(settings: Mapping[str, Setting]) -> dict[str, Any]:
    """pydantic's fields of our own declarations."""
    fields: dict[str, Any] = {}
    for name, setting in settings.items():
        default = ... if setting.required else setting.default
        fields[name] = (_annotation(setting.annotation), Field(default, description=setting.doc))
    return fields


def _annotation(annotation: Any) -> Any:
    """A type whose ranges are pydantic's instead of ours; marks stay as they are."""
    if get_origin(annotation) is Annotated:
        kind, *marks = get_args(annotation)
        limits = [
            Field(ge=mark.ge, gt=mark.gt, le=mark.le, lt=mark.lt) if isinstance(mark, Range) else mark for mark in marks
        ]
        return Annotated[_annotation(kind), *limits]
    if get_origin(annotation) is not None and any(get_origin(part) is Annotated for part in get_args(annotation)):
        members = tuple(_annotation(part) for part in get_args(annotation))
        return functools.reduce(lambda one, other: one | other, members)
    return annotation
