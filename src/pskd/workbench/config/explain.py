"""What is wrong with settings, in one line; and the list of all settings."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from pskd.workbench import registry
from pskd.workbench.config.base import Section
from pskd.workbench.config.classes import config_class, method_class
from pskd.workbench.config.run import Config

TOP_LEVEL_SHORTS = {"epochs": "train", "seed": "train", "batch_size": "train"}


def explain(error: ValidationError, kind: type[Config]) -> str:
    """The first thing that is wrong: what, where, what is allowed."""
    first, *others = error.errors()
    path = _path(first, kind)
    key = ".".join(path)
    places = [_path(other, kind) for other in others]
    more = len({tuple(place) for place in places} - {tuple(path)})
    if first["type"] == "extra_forbidden":
        section = _section(kind, path[:-1])
        prefix = ".".join([*path[:-1], ""])
        known = [prefix + name for name in section.model_fields] + ([] if path[:-1] else list(TOP_LEVEL_SHORTS))
        near = difflib.get_close_matches(key, known, 1, cutoff=0.75) or [
            full for full in _all_keys(kind) if full != key and full.rsplit(".", 1)[-1] == path[-1]
        ]
        hint = f"did you mean {near[0]}?" if near else f"allowed are {', '.join(known)}"
        whose = f" of {section.model_fields['name'].default}" if path[0] == "method" else ""
        text = f"{key}: unknown setting{whose}; {hint}"
    else:
        given = first["input"]
        if isinstance(given, Mapping) and "name" in given:
            given = given["name"]  # method=NAME, as it is written
        if places.count(path) > 2:  # none of the many kinds that an option can have
            why = "must be a number, a word, true, false, or a list of these"
        else:
            why = (first["msg"][0].lower() + first["msg"][1:]).removeprefix("value error, ")
            words = [other for other, place in zip(others, places, strict=True) if place == path]
            why += "".join(f", or {word['ctx']['expected']}" for word in words if word["type"] == "literal_error")
        # A whole section that does not fit together says itself which of its settings.
        own = "" if first["type"] == "value_error" and isinstance(given, Mapping) else f"={reprlib.repr(given)}"
        text = f"{key}{own}: {why}"
    return text + (f" (and {more} more)" if more else "")


def _path(error: ErrorDetails, kind: type[Config]) -> list[str]:
    """Where a wrong setting is, without the alternatives of its type: the library names one after the other."""
    loc = error["loc"]
    if error["type"] == "extra_forbidden":
        return [str(part) for part in loc]
    depth = next((n for n in range(len(loc), 0, -1) if _is_setting(kind, loc[:n])), 1)
    return [str(part) for n, part in enumerate(loc) if n < depth or isinstance(part, int)]


def _is_setting(kind: type[Config], path: Sequence[int | str]) -> bool:
    section: Any = kind
    for n, part in enumerate(path):
        fields = getattr(section, "model_fields", {})
        if part not in fields:  # options of a model are no fields
            return n + 1 == len(path) and getattr(section, "model_config", {}).get("extra") == "allow"
        section = fields[part].annotation
    return True


def describe() -> list[str]:
    """Every setting with its default, section by section."""
    shared = {name: field.annotation for name, field in Config.model_fields.items() if name != "method"}
    sections: list[tuple[str, Any]] = []
    for task in registry.tasks.names():
        own = {name: field.annotation for name, field in config_class(task, None, None).model_fields.items()}
        sections += [
            (f"{name} (task {task})", kind)
            for name, kind in own.items()
            if name != "method" and shared.get(name) != kind
        ]
    sections += [(name, kind) for name, kind in shared.items() if name not in ("data", "model")]
    for name in registry.methods.names():
        sections.append((f"method={name}", method_class(name, registry.methods.find(name))))
    lines = [
        "epochs, seed and batch_size are short for train.epochs, ...; method=NAME for method.name=NAME, so data, model"
    ]
    for title, kind in sections:
        if not (isinstance(kind, type) and issubclass(kind, Section)):
            continue
        prefix = title.split("=")[0].split(" ")[0]
        about = (kind.__doc__ or "").strip().splitlines()
        lines += ["", title, *(f"    {line.strip()}" for line in (about[:1] if prefix == "method" else about) if line)]
        for key, field in kind.model_fields.items():
            allowed = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
            choice = f"  ({', '.join(allowed)})" if len(allowed) > 1 else ""
            doc = f"  # {field.description}" if field.description else ""
            lines.append(f"  {prefix}.{key}={'' if field.default is None else field.default}{choice}{doc}")
    return lines


def _section(kind: type[Section], path: list[str]) -> type[Section]:
    for part in path:
        inner = kind.model_fields[part].annotation
        assert isinstance(inner, type)
        kind = inner
    return kind


def _all_keys(kind: type[Section], prefix: str = "") -> list[str]:
    keys = []
    for name, field in kind.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            keys += _all_keys(field.annotation, f"{prefix}{name}.")
        else:
            keys.append(prefix + name)
    return keys
