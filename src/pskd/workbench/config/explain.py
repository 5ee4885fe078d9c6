"""Why a setting is refused, in one line; and the list of all settings."""

from __future__ import annotations

import difflib
import inspect
import re
import reprlib
import textwrap
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, TypeGuard

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from pskd.settings import allowed
from pskd.workbench import registry
from pskd.workbench.config.base import Config, MethodConfig, Section
from pskd.workbench.config.classes import config_class, method_class
from pskd.workbench.config.methods import build_memory

TOP_LEVEL_SHORTS = {"epochs": "train", "seed": "train", "batch_size": "train"}
# By the first word of pydantic's error type; other errors keep pydantic's own message.
_REASONS = {
    "int": "must be a whole number",
    "float": "must be a number",
    "bool": "must be true or false",
    "string": "must be text",
    "tuple": "must be a list",
    "model": "must hold settings as 'key: value' lines",
    "missing": "is missing",
}


def explain(error: ValidationError, kind: type[Config], tree: Mapping[str, Any]) -> str:
    """The first error in the settings ``tree``: where it is, and what is allowed there."""
    errors = error.errors()
    first, path = errors[0], _path(errors[0], tree)
    more = len({tuple(_path(other, tree)) for other in errors} - {tuple(path)})
    text = _unknown(path, kind) if first["type"] == "extra_forbidden" else _wrong(errors, path, tree)
    return text + (f" (and {more} more)" if more else "")


def describe() -> list[str]:
    """Every setting with its default and what is allowed, section by section."""
    lines = [
        "epochs, seed and batch_size are short for train.epochs, ...; method=NAME for method.name=NAME, so data, model"
    ]
    for title, section in _sections():
        prefix = title.split("=")[0].split(" ")[0]
        lines += ["", title, *_indented(section.__doc__)]
        hidden = MethodConfig.model_fields if "=" in title else ()
        for name, field in section.model_fields.items():
            kind = Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
            choice = f"  ({text})" if name != "name" and (text := allowed(kind)) else ""
            if name not in hidden:
                lines.append(f"  {prefix}.{name}={'' if field.default is None else field.default}{choice}")
    return [*lines, "", "the memory of a method", *_indented(build_memory.__doc__)]


def _sections() -> Iterator[tuple[str, type[Section]]]:
    """The sections of each task, those that tasks share, and those of each method, with their titles."""
    shared = {name: field.annotation for name, field in Config.model_fields.items()}
    for task in registry.tasks.names():
        for name, field in config_class(task, None, None).model_fields.items():
            if name != "method" and field.annotation != shared.get(name) and _is_section(field.annotation):
                yield f"{name} (task {task})", field.annotation
    for name, kind in shared.items():
        if name not in ("data", "model") and _is_section(kind):
            yield name, kind
    for name in registry.methods.names():
        yield f"method={name}", method_class(name, registry.methods.find(name))


def _is_section(kind: Any) -> TypeGuard[type[Section]]:
    return isinstance(kind, type) and issubclass(kind, Section)


def _indented(doc: str | None) -> list[str]:
    return textwrap.indent(inspect.cleandoc(doc or ""), "    ").splitlines()


def _unknown(path: list[str], kind: type[Config]) -> str:
    """A setting that does not exist, and the name that may have been meant."""
    section: Any = kind
    for part in path[:-1]:
        section = section.model_fields[part].annotation
    key = ".".join(path)
    known = [".".join([*path[:-1], name]) for name in section.model_fields]
    known += TOP_LEVEL_SHORTS if len(path) == 1 else ()
    near = difflib.get_close_matches(key, known, 1, cutoff=0.75) or [
        full for full in _all_keys(kind) if full != key and full.rsplit(".", 1)[-1] == path[-1]
    ]
    hint = f"did you mean {near[0]}?" if near else f"allowed are {', '.join(known)}"
    owner = f" of {section.model_fields['name'].default}" if path[0] == "method" else ""
    return f"{key}: unknown setting{owner}; {hint}"


def _wrong(errors: list[ErrorDetails], path: list[str], tree: Mapping[str, Any]) -> str:
    """Why a value is refused. There is an error for each type that the setting may have."""
    errors = [error for error in errors if _path(error, tree) == path]
    reasons = [_reason(error) for error in errors]
    if len(reasons) > 3:  # one of the many types of a model's option
        reasons = ["must be a number, a word, true, false, or a list of these"]
    why = ", or ".join([reasons[0], *(re.sub("^must (be )?", "", reason) for reason in reasons[1:])])
    given = errors[0]["input"]
    if isinstance(given, Mapping) and "name" in given:
        given = given["name"]  # it was written as method=NAME
    # A missing setting has no value, and a section whose settings do not fit together names them in its message.
    kind = errors[0]["type"]
    no_value = kind == "missing" or (kind == "value_error" and isinstance(given, Mapping))
    return f"{'.'.join(path)}{'' if no_value else f'={reprlib.repr(given)}'}: {why}"


def _reason(error: ErrorDetails) -> str:
    message = (error["msg"][0].lower() + error["msg"][1:]).removeprefix("value error, ")
    return _REASONS.get(error["type"].split("_")[0], message.replace("input should be", "must be"))


def _path(error: ErrorDetails, tree: Any) -> list[str]:
    """Where in the settings an error is: pydantic puts names of types between the keys."""
    path = []
    for part in error["loc"]:
        try:
            tree = tree[part]
        except (KeyError, IndexError, TypeError):
            if error["type"] != "missing":
                continue
        path.append(str(part))
    return path


def _all_keys(kind: type[Section], prefix: str = "") -> list[str]:
    keys = []
    for name, field in kind.model_fields.items():
        inner = field.annotation
        keys += _all_keys(inner, f"{prefix}{name}.") if _is_section(inner) else [prefix + name]
    return keys
