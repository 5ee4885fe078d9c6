"""How a recipe and `key=value` overrides become one resolved configuration; what is wrong is said in one line."""

from __future__ import annotations

import difflib
import re
import reprlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic import ValidationError

from pskd.config.base import Section
from pskd.config.classification import ClassificationConfig
from pskd.config.detection import DetectionConfig
from pskd.config.methods import METHODS
from pskd.config.run import Config
from pskd.config.translation import TranslationConfig
from pskd.errors import PskdError
from pskd.recipes import laptop_overlay

TASKS: dict[str, type[Config]] = {
    kind.model_fields["task"].default: kind for kind in (ClassificationConfig, DetectionConfig, TranslationConfig)
}
LARGEST_FILE = 1_000_000  # bytes of settings
DEFAULT_TASK = "classification"
TOP_LEVEL_SHORTS = {"epochs": "train", "seed": "train", "batch_size": "train"}
SAFE_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the first is that in C, ten times as fast
NAMED_SECTIONS = ("data", "model", "method")


def resolve(recipe: Mapping[str, Any], overrides: Iterable[str] = (), *, name: str | None = None) -> Config:
    """A recipe's settings with `key.sub=value` overrides on top.

    A recipe may hold a section `methods` with each method's constants for its model: those of the chosen one are taken.
    `scale=laptop` puts the common overlay and the recipe's section `laptop` between the two.
    """
    tree: dict[str, Any] = {}
    recipe = {key: value for key, value in recipe.items() if key not in ("about", "tables")}
    constants, laptop = recipe.pop("methods", None) or {}, recipe.pop("laptop", None) or {}
    _merge(tree, {"recipe": name} if name else {})
    _merge(tree, _long_form(recipe))
    given: dict[str, Any] = {}
    for override in overrides:
        _merge(given, _override(override))
    if given.get("scale", tree.get("scale")) == "laptop":
        overlay = laptop_overlay(tree.get("task", DEFAULT_TASK))
        for changes in (_long_form(overlay), _long_form(laptop)):
            if "model" in changes:
                tree["model"] = {}  # another model has other options
            _merge(tree, changes)
    chosen = given.get("method", {}).get("name") or tree.get("method", {}).get("name") or "ps_kd"
    if tree.get("method", {}).get("name", chosen) != chosen:
        tree["method"] = {}  # settings of the recipe's own method mean nothing to another one
    tree["method"] = {**constants.get(chosen, {}), **tree.get("method", {}), "name": chosen}
    _merge(tree, given)
    return validated(tree)


def changed(config: Config, overrides: Iterable[str]) -> Config:
    """A resolved configuration with `key.sub=value` overrides on top."""
    tree = config.model_dump(mode="json")
    for override in overrides:
        _merge(tree, _override(override))
    return validated(tree)


def validated(tree: Mapping[str, Any]) -> Config:
    """A configuration from plain data; what is wrong is said in one line."""
    task = tree.get("task", DEFAULT_TASK)
    if not isinstance(task, str) or task not in TASKS:
        raise PskdError(f"task: {reprlib.repr(task)} is not a task; allowed are {', '.join(TASKS)}")
    kind = TASKS[task]
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        raise PskdError(_explain(error, kind)) from None


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file that holds a mapping."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise PskdError(f"{path}: larger than {LARGEST_FILE:,} bytes, which no settings are")
        tree = yaml.load(path.read_text(encoding="utf-8"), SAFE_LOADER)
    except RecursionError:
        raise PskdError(f"{path}: not valid settings (nested too deeply)") from None
    except OSError as error:
        raise PskdError(f"{path} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        where = getattr(error, "problem_mark", None)
        line = f", line {where.line + 1}" if where else ""
        raise PskdError(f"{path}{line}: not valid YAML ({getattr(error, 'problem', error)})") from None
    if not isinstance(tree, dict):
        raise PskdError(f"{path}: expected settings as 'key: value' lines, found {type(tree).__name__}")
    return tree


def differences(one: Config, other: Config) -> list[str]:
    """The settings in which two configurations differ, as `key: this, that`."""
    flat_one, flat_other = flat(one.model_dump(mode="json")), flat(other.model_dump(mode="json"))
    keys = [key for key in {**flat_one, **flat_other} if flat_one.get(key) != flat_other.get(key)]
    return [f"{key}: {flat_one.get(key)}, {flat_other.get(key)}" for key in keys]


def describe() -> list[str]:
    """Every setting with its default, section by section."""
    shared = {name: field.annotation for name, field in Config.model_fields.items() if name != "method"}
    sections: list[tuple[str, Any]] = []
    for task in TASKS.values():
        own = {name: field.annotation for name, field in task.model_fields.items()}
        named = task.model_fields["task"].default
        sections += [(f"{name} (task {named})", kind) for name, kind in own.items() if shared.get(name) != kind]
    sections += [(name, kind) for name, kind in shared.items() if name not in ("data", "model")]
    sections += [(f"method={name}", kind) for name, kind in METHODS.items()]
    lines = [
        "epochs, seed and batch_size are short for train.epochs, ...; method=NAME for method.name=NAME, so data, model"
    ]
    for title, kind in sections:
        if not (isinstance(kind, type) and issubclass(kind, Section)):
            continue
        lines += ["", title, *(f"    {line.strip()}" for line in (kind.__doc__ or "").strip().splitlines() if line)]
        prefix = title.split("=")[0].split(" ")[0]
        for key, field in kind.model_fields.items():
            allowed = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
            choice = f"  ({', '.join(allowed)})" if len(allowed) > 1 else ""
            lines.append(f"  {prefix}.{key}={'' if field.default is None else field.default}{choice}")
    return lines


def _override(text: str) -> dict[str, Any]:
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise PskdError(f"{text!r} is not a setting: write key=value, for example optim.lr=0.05")
    tree: Any = parse_value(key, value)
    for part in reversed(key.split(".")):
        tree = {part: tree}
    return _long_form(tree)


def parse_value(key: str, text: str) -> Any:
    """The value of `key=text`."""
    try:
        parsed = yaml.safe_load(text) if text else None
    except yaml.YAMLError:
        raise PskdError(f"{key}: {text!r} is not a valid value") from None
    # YAML reads 1e-3 as text; people who train models do not.
    if isinstance(parsed, str) and re.fullmatch(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+", parsed):
        parsed = float(parsed)
    return parsed


def _long_form(tree: Mapping[str, Any]) -> dict[str, Any]:
    """`method: ps_kd` as `method: {name: ps_kd}`, `epochs: 3` as `train: {epochs: 3}`."""
    long: dict[str, Any] = {}
    for key, value in tree.items():
        if key in TOP_LEVEL_SHORTS:
            _merge(long, {TOP_LEVEL_SHORTS[key]: {key: value}})
        elif key in NAMED_SECTIONS and isinstance(value, str):
            _merge(long, {key: {"name": value}})
        else:
            _merge(long, {key: value})
    return long


def _merge(into: dict[str, Any], tree: Mapping[str, Any]) -> None:
    for key, value in tree.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = dict(value) if isinstance(value, Mapping) else value


def flat(tree: Mapping[str, Any], separator: str = ".") -> dict[str, Any]:
    """A tree's leaves by their path: ``{"a": {"b": 1}}`` as ``{"a.b": 1}``."""
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            leaves.update({f"{key}{separator}{path}": leaf for path, leaf in flat(value, separator).items()})
        else:
            leaves[key] = value
    return leaves


def _explain(error: ValidationError, kind: type[Config]) -> str:
    first, more = error.errors()[0], error.error_count() - 1
    path = [str(part) for part in first["loc"]]
    if path[:1] == ["method"] and len(path) > 2:
        del path[1]  # pydantic names the union's member; the user did not
    key = ".".join(path)
    if first["type"] == "extra_forbidden":
        prefix = ".".join([*path[:-1], ""])
        known = [prefix + name for name in _known_keys(kind, path[:-1], first["loc"])]
        near = difflib.get_close_matches(key, known, 1, cutoff=0.75) or [
            full for full in _all_keys(kind) if full != key and full.rsplit(".", 1)[-1] == path[-1]
        ]
        hint = f"did you mean {near[0]}?" if near else f"allowed are {', '.join(known)}"
        text = f"{key}: unknown setting{_of_method(first['loc'])}; {hint}"
    elif first["type"] == "union_tag_invalid":
        tag = str(first["ctx"]["tag"])
        near = difflib.get_close_matches(tag, METHODS, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        text = f"method: {tag!r} is not a method; allowed are {', '.join(METHODS)}{hint}"
    else:
        given = first["input"]
        if isinstance(given, Mapping) and "name" in given:
            given = given["name"]  # method=NAME, as it is written
        why = (first["msg"][0].lower() + first["msg"][1:]).removeprefix("value error, ")
        text = f"{key}={reprlib.repr(given)}: {why}"
    return text + (f" (and {more} more)" if more else "")


def _of_method(location: tuple[int | str, ...]) -> str:
    return f" of {location[1]}" if location[0] == "method" else ""


def _known_keys(kind: type[Config], path: list[str], location: tuple[int | str, ...]) -> list[str]:
    if not path:
        return [*kind.model_fields, *TOP_LEVEL_SHORTS]
    if path[0] == "method":
        return list(METHODS[str(location[1])].model_fields)
    return list(kind.model_fields[path[0]].annotation.model_fields)  # type: ignore[union-attr]


def _all_keys(kind: type[Config]) -> list[str]:
    return list(flat(kind().model_dump(mode="json")))  # type: ignore[call-arg]
