"""How a recipe and `key=value` overrides become one resolved configuration."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

from pydantic import ValidationError

from pskd.errors import PskdError
from pskd.workbench import registry
from pskd.workbench.config.base import Section
from pskd.workbench.config.classes import DEFAULT_METHOD, DEFAULT_TASK, config_class, task_class
from pskd.workbench.config.explain import TOP_LEVEL_SHORTS, explain
from pskd.workbench.config.old_names import refuse_old_names, with_new_names
from pskd.workbench.config.run import Config
from pskd.workbench.config.yaml_file import parsed_yaml, read_yaml

NAMED_SECTIONS = ("data", "model", "method")
_LAPTOP = Path(__file__).with_name("laptop.yaml")


class Word(NamedTuple):
    """The value of an override as it was written, and as YAML reads it: its setting's type decides between the two."""

    written: str
    parsed: Any

    @property
    def text(self) -> str:
        """What it says, without quotes."""
        return self.parsed if isinstance(self.parsed, str) else self.written


def resolve(
    recipe: Mapping[str, Any], overrides: Iterable[str] = (), *, name: str | None = None, allow_code: bool = True
) -> Config:
    """A recipe's settings with `key.sub=value` overrides on top.

    Code that they name is imported, since they are a user's own; with ``allow_code=False`` it is not.

    A recipe may hold a section `methods` with each method's constants for its model: those of the chosen one are taken.
    `scale=laptop` puts the common overlay and the recipe's section `laptop` between the two.
    """
    tree: dict[str, Any] = {}
    overrides = list(overrides)
    refuse_old_names(overrides)
    recipe = {key: value for key, value in recipe.items() if key not in ("about", "tables")}
    constants, laptop = (_mapping(recipe, key) for key in ("methods", "laptop"))
    recipe = {key: value for key, value in recipe.items() if key not in ("methods", "laptop")}
    _merge(tree, {"recipe": name} if name else {})
    _merge(tree, _long_form(recipe))
    given: dict[str, Any] = {}
    for override in overrides:
        _merge(given, _override(override))
    task = _text(given.get("task", tree.get("task", DEFAULT_TASK)), "task")
    if _text(given.get("scale", tree.get("scale", "full")), "scale") == "laptop":
        wanted = _mapping(given, "model").get("name")
        for changes in (_long_form(_mapping(read_yaml(_LAPTOP), task)), _long_form(laptop)):
            if wanted is not None and _mapping(changes, "model").get("name") not in (None, _text(wanted, "model")):
                del changes["model"]  # its options mean nothing to the one that is asked for
            if "model" in changes:
                tree["model"] = {}  # another model has other options
            _merge(tree, changes)
    kind = task_class(task, allow_code=allow_code)
    default = (kind and kind.default_method) or DEFAULT_METHOD
    own = _text(_mapping(tree, "method").get("name", default), "method")
    chosen = _text(_mapping(given, "method").get("name", own), "method")
    if own != chosen:
        tree["method"] = {}  # settings of the recipe's own method mean nothing to another one
    tree["method"] = {**_mapping(constants, chosen), **_mapping(tree, "method"), "name": chosen}
    tree = dict(with_new_names(tree))
    _merge(tree, given)
    return validated(tree, allow_code=allow_code)


def changed(config: Config, overrides: Iterable[str], *, allow_code: bool = False) -> Config:
    """A resolved configuration with `key.sub=value` overrides on top."""
    overrides = list(overrides)
    refuse_old_names(overrides)
    tree = config.model_dump(mode="json")
    for override in overrides:
        _merge(tree, _override(override))
    return validated(tree, allow_code=allow_code)


def validated(tree: Mapping[str, Any], *, allow_code: bool = False) -> Config:
    """A configuration from plain data; what is wrong is said in one line.

    ``allow_code`` is for what a user's own command or recipe says: see ``config_class``.
    """
    task = _text(tree.get("task", DEFAULT_TASK), "task")
    method, data = (_mapping(tree, section).get("name") for section in ("method", "data"))
    names = [None if name is None else _text(name, section) for section, name in (("method", method), ("data", data))]
    kind = config_class(task, *names, allow_code=allow_code)
    model = _mapping(tree, "model").get("name")
    if allow_code and model is not None and registry.is_code(_text(model, "model")):
        registry.models.load(_text(model, "model"), allow_code=True)
    try:
        return kind.model_validate(_settled(with_new_names(tree), kind))
    except ValidationError as error:
        raise PskdError(explain(error, kind)) from None


def differences(one: Config, other: Config) -> list[str]:
    """The settings in which two configurations differ, as `key: this, that`."""
    flat_one, flat_other = flat(one.model_dump(mode="json")), flat(other.model_dump(mode="json"))
    keys = [key for key in {**flat_one, **flat_other} if flat_one.get(key) != flat_other.get(key)]
    return [f"{key}: {flat_one.get(key)}, {flat_other.get(key)}" for key in keys]


def parse_value(key: str, text: str) -> Any:
    """The value of `key=text` as YAML reads it; and 1e-3 is a number, as people who train models write it."""
    try:
        value = parsed_yaml(text, key) if text else None
    except PskdError:
        raise PskdError(f"{key}: {reprlib.repr(text)} is not a valid value") from None
    if isinstance(value, str) and re.fullmatch(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+", value):
        return float(value)
    return value


def flat(tree: Mapping[str, Any], separator: str = ".") -> dict[str, Any]:
    """A tree's leaves by their path: ``{"a": {"b": 1}}`` as ``{"a.b": 1}``."""
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            leaves.update({f"{key}{separator}{path}": leaf for path, leaf in flat(value, separator).items()})
        else:
            leaves[key] = value
    return leaves


def long_key(key: str) -> str:
    """`epochs` as `train.epochs`, `method` as `method.name`; any other key as it is."""
    if key in TOP_LEVEL_SHORTS:
        return f"{TOP_LEVEL_SHORTS[key]}.{key}"
    return f"{key}.name" if key in NAMED_SECTIONS else key


def _override(text: str) -> dict[str, Any]:
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise PskdError(f"{text!r} is not a setting: write key=value, for example optim.lr=0.05")
    tree: Any = Word(value, parse_value(key, value))
    for part in reversed(key.split(".")):
        tree = {part: tree}
    return _long_form(tree)


def _long_form(tree: Mapping[str, Any]) -> dict[str, Any]:
    """`method: ps_kd` as `method: {name: ps_kd}`, `epochs: 3` as `train: {epochs: 3}`."""
    long: dict[str, Any] = {}
    for key, value in tree.items():
        if key in TOP_LEVEL_SHORTS:
            _merge(long, {TOP_LEVEL_SHORTS[key]: {key: value}})
        elif key in NAMED_SECTIONS and not isinstance(value, Mapping):
            # JSON comes from studies: `method={"name": ...}` is a section as well.
            section = value.parsed if isinstance(value, Word) and isinstance(value.parsed, Mapping) else None
            _merge(long, {key: section or {"name": _text(value, key)}})
        else:
            _merge(long, {key: value})
    return long


def _text(value: Any, key: str) -> str:
    """A name that was given for ``key``."""
    text = value.text if isinstance(value, Word) else value
    if not isinstance(text, str) or not text:
        raise PskdError(f"{key}={reprlib.repr(text)} is not a name: write for example {_EXAMPLES[key]}")
    return text


_EXAMPLES = {
    "data": "data=digits",
    "model": "model=resnet8",
    "method": "method=ps_kd",
    "task": "task=classification",
    "scale": "scale=laptop",
}


def _mapping(tree: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The section ``key`` of a tree; one that is not there is empty."""
    section = tree.get(key)
    if section is not None and not isinstance(section, Mapping):
        raise PskdError(f"{key}: expected settings as 'key: value' lines, found {reprlib.repr(section)}")
    return dict(section or {})


def _merge(into: dict[str, Any], tree: Mapping[str, Any]) -> None:
    for key, value in tree.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = dict(value) if isinstance(value, Mapping) else value


def _settled(tree: Any, kind: Any) -> Any:
    """The tree with every ``Word`` as its setting's type wants it: text stays text where text is wanted."""
    if isinstance(tree, Word):
        wants = _members(kind)
        if str in wants and not wants & {int, float, bool}:
            return None if tree.parsed is None and NoneType in wants else tree.text
        return tree.parsed
    if not isinstance(tree, Mapping):
        return tree
    fields = kind.model_fields if isinstance(kind, type) and issubclass(kind, Section) else {}
    return {key: _settled(value, fields[key].annotation if key in fields else None) for key, value in tree.items()}


def _members(annotation: Any) -> set[Any]:
    """The types that a setting may have: `str | None` as {str, NoneType}."""
    if get_origin(annotation) is Annotated:
        return _members(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return set().union(*map(_members, get_args(annotation)))
    return {annotation}
