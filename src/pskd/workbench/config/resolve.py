"""How a recipe and `key=value` overrides become one resolved configuration.

On the way settings are flat, with their whole path as key: ``{"optim.lr": 0.1}``.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple

from pydantic import ValidationError

from pskd.errors import PskdError
from pskd.settings import alternatives
from pskd.workbench import registry
from pskd.workbench.config.base import Config
from pskd.workbench.config.classes import DEFAULT_METHOD, DEFAULT_TASK, config_class, task_class
from pskd.workbench.config.explain import TOP_LEVEL_SHORTS, explain
from pskd.workbench.config.old_names import refuse_old_names, with_new_keys
from pskd.workbench.config.yaml_file import parsed_yaml, read_yaml

_LAPTOP = Path(__file__).with_name("laptop.yaml")
_EXAMPLES = {"data": "digits", "model": "resnet8", "method": DEFAULT_METHOD, "task": DEFAULT_TASK, "scale": "laptop"}


class Word(NamedTuple):
    """The value of an override as written, and as YAML reads it. The type of its setting decides which counts."""

    written: str
    parsed: Any

    @property
    def text(self) -> str:
        """The value as text, without quotes."""
        return self.parsed if isinstance(self.parsed, str) else self.written


def resolve(
    recipe: Mapping[str, Any], overrides: Iterable[str] = (), *, name: str | None = None, allow_code: bool = True
) -> Config:
    """A recipe's settings with `key.sub=value` overrides on top.

    Code that they name is imported, since it is a user's own; with ``allow_code=False`` it is not.

    A recipe's section `methods` holds constants of methods for its model; those of the chosen method are used.
    `scale=laptop` puts laptop.yaml and the recipe's section `laptop` between the recipe and the overrides.
    """
    given = _read_overrides(overrides)
    apart = ("about", "tables", "methods", "laptop")
    settings = {"recipe": name} if name else {}
    settings |= _flatten({key: value for key, value in recipe.items() if key not in apart})
    constants, laptop = _section(recipe, "methods"), _section(recipe, "laptop")
    task = _name("task", given, settings, default=DEFAULT_TASK)
    if _name("scale", given, settings, default="full") == "laptop":
        for overlay in map(_flatten, (_section(read_yaml(_LAPTOP), task), laptop)):
            model = overlay.get("model.name")
            if model is not None and _name("model.name", given, default=model) != model:
                overlay = _without("model", overlay)  # these options belong to another model than the chosen one
            if any(key.startswith("model.") for key in overlay):
                settings = _without("model", settings)
            settings |= overlay
    kind = task_class(task, allow_code=allow_code)
    own = _name("method.name", settings, default=(kind and kind.default_method) or DEFAULT_METHOD)
    chosen = _name("method.name", given, default=own)
    if own != chosen:
        settings = _without("method", settings)  # these settings belong to the recipe's own method
    settings = _flatten({"method": _section(constants, chosen)}) | settings | {"method.name": chosen}
    return _validate(settings | given, allow_code)


def changed(config: Config, overrides: Iterable[str], *, allow_code: bool = False) -> Config:
    """A resolved configuration with `key.sub=value` overrides on top."""
    return _validate(_flatten(config.model_dump(mode="json")) | _read_overrides(overrides), allow_code)


def validated(tree: Mapping[str, Any], *, allow_code: bool = False) -> Config:
    """A configuration from plain data, or a PskdError of one line.

    ``allow_code`` is for a user's own command or recipe: see ``config_class``.
    """
    return _validate(_flatten(tree), allow_code)


def differences(one: Config, other: Config) -> list[str]:
    """The settings in which two configurations differ, as `key: this, that`."""
    flat_one, flat_other = flat(one.model_dump(mode="json")), flat(other.model_dump(mode="json"))
    keys = [key for key in {**flat_one, **flat_other} if flat_one.get(key) != flat_other.get(key)]
    return [f"{key}: {flat_one.get(key)}, {flat_other.get(key)}" for key in keys]


def parse_value(key: str, text: str) -> Any:
    """The value of `key=text` as YAML reads it; 1e-3 is a number, too."""
    try:
        value = parsed_yaml(text, key) if text else None
    except PskdError:
        raise PskdError(f"{key}: {reprlib.repr(text)} is not a valid value") from None
    if isinstance(value, str) and re.fullmatch(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+", value):
        return float(value)
    return value


def flat(tree: Mapping[str, Any], separator: str = ".") -> dict[str, Any]:
    """A tree's leaves by their path: ``{"a": {"b": 1}}`` as ``{"a.b": 1}``."""
    return {path: leaf for path, leaf in _leaves(tree, separator) if not isinstance(leaf, Mapping)}


def _leaves(tree: Mapping[str, Any], separator: str = ".") -> Iterator[tuple[str, Any]]:
    """Paths and leaves of a tree; empty sections are leaves, too."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from ((f"{key}{separator}{path}", leaf) for path, leaf in _leaves(value, separator))
        else:
            yield str(key), value


def long_key(key: str) -> str:
    """`epochs` as `train.epochs`, `method` as `method.name`; any other key as it is."""
    if (short := key.split(".")[0]) in TOP_LEVEL_SHORTS:
        return f"{TOP_LEVEL_SHORTS[short]}.{key}"
    return f"{key}.name" if key in ("data", "model", "method") else key


def _flatten(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a tree by their long keys, with today's names."""
    return with_new_keys({key if value == {} else long_key(key): value for key, value in _leaves(tree)})


def _nest(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The tree of flat settings."""
    tree: dict[str, Any] = {}
    for key, value in settings.items():
        *parents, last = key.split(".")
        section = tree
        for depth, part in enumerate(parents, 1):
            section = section.setdefault(part, {})
            if not isinstance(section, dict):
                owner = f"{'.'.join(parents[:depth])}={reprlib.repr(section)}"
                raise PskdError(f"{owner} is not a section of settings, so {key} cannot be set")
        if value == {}:
            section.setdefault(last, {})
        else:
            section[last] = value
    return tree


def _read_overrides(overrides: Iterable[str]) -> dict[str, Any]:
    overrides = list(overrides)
    refuse_old_names(overrides)
    given: dict[str, Any] = {}
    for override in overrides:
        key, sign, text = override.partition("=")
        if not sign or not key:
            raise PskdError(f"{override!r} is not a setting: write key=value, for example optim.lr=0.05")
        value = parse_value(key, text)
        # A study writes whole sections as JSON: method={"name": ...}.
        given |= _flatten({key: value if isinstance(value, Mapping) else Word(text, value)})
    return given


def _validate(settings: Mapping[str, Any], allow_code: bool) -> Config:
    task = _name("task", settings, default=DEFAULT_TASK)
    data, model, method = (_name(f"{section}.name", settings) for section in ("data", "model", "method"))
    kind = config_class(task, method, data, allow_code=allow_code)
    if allow_code and model is not None and registry.is_code(model):
        registry.models.load(model, allow_code=True)
    tree = _nest({key: _read(value, kind, key) for key, value in settings.items()})
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        raise PskdError(explain(error, kind, tree)) from None


def _read(value: Any, kind: Any, key: str) -> Any:
    """The value of a ``Word`` for the type of its setting: "no" is text where the type is text, and else false."""
    if not isinstance(value, Word):
        return value
    for part in key.split("."):
        fields = getattr(kind, "model_fields", {})
        kind = fields[part].annotation if part in fields else None
    kinds = {each for each, _ in alternatives(kind)}
    if str not in kinds or kinds & {int, float, bool}:
        return value.parsed
    return None if value.parsed is None and NoneType in kinds else value.text


def _name(key: str, *layers: Mapping[str, Any], default: Any = None) -> Any:
    """The name that the first of these settings give for ``key``."""
    value = next((layer[key] for layer in layers if key in layer), default)
    text = value.text if isinstance(value, Word) else value
    if text is not default and not (isinstance(text, str) and text):
        section = key.removesuffix(".name")
        example = f"{section}={_EXAMPLES[section]}"
        raise PskdError(f"{section}={reprlib.repr(text)} is not a name: write for example {example}")
    return text


def _section(tree: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The section ``key`` of a tree; a missing one is empty."""
    section = tree.get(key)
    if section is not None and not isinstance(section, Mapping):
        raise PskdError(f"{key}: expected settings as 'key: value' lines, got {reprlib.repr(section)}")
    return dict(section or {})


def _without(section: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if not key.startswith(f"{section}.")}
