"""YAML of settings, read safely; a message of one line says what is wrong and where."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

from pskd.errors import PskdError
from pskd.workbench.reading import read_text

LARGEST_FILE = 1_000_000  # bytes
MOST_NODES, DEEPEST = 100_000, 50  # values with everything that aliases stand for, and levels
SAFE_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the loader in C is ten times as fast


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file that holds a mapping."""
    tree = parsed_yaml(read_text(path, LARGEST_FILE), str(path))
    if not isinstance(tree, dict):
        raise PskdError(f"{path}: expected settings as 'key: value' lines, got {type(tree).__name__}")
    if strange := [key for key in tree if not isinstance(key, str)]:
        raise PskdError(f"{path}: the setting {strange[0]!r} is not a name")
    return tree


def parsed_yaml(text: str, where: str) -> Any:
    """The value that YAML text stands for; messages begin with ``where``."""
    try:
        _check_size(text)
        value = yaml.load(text, SAFE_LOADER)
        _check_values(value)
        return value
    # PyYAML also raises the errors of Python's own types, at some dates, numbers and tags.
    except (yaml.YAMLError, ValueError, TypeError, OverflowError, LookupError, AttributeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        reason = " ".join(str(getattr(error, "problem", None) or error).split()) or type(error).__name__
        raise PskdError(f"{where}{line}: not valid YAML ({reason})") from None


def _check_size(text: str) -> None:
    """Refuse what is nested too deeply for the stack, and aliases that stand for too many values or for themselves."""
    sizes: dict[str | None, int] = {}  # how many values each anchor stands for; 0 while its value is being read
    inside: list[
        tuple[str | None, int]
    ] = []  # the collections around an event: their anchors, and the count before them
    count = 0
    for event in yaml.parse(text, SAFE_LOADER):
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, before = inside.pop()
            sizes[anchor] = count - before
        elif isinstance(event, yaml.AliasEvent):
            if sizes.get(event.anchor) == 0:
                raise ValueError("an alias stands inside its own value")
            count += sizes.get(event.anchor, 1)
        elif isinstance(event, yaml.NodeEvent):
            count += 1
            sizes[event.anchor] = 1
            if isinstance(event, yaml.CollectionStartEvent):
                sizes[event.anchor] = 0
                inside.append((event.anchor, count - 1))
        if len(inside) > DEEPEST:
            raise ValueError("nested too deeply")
        if count > MOST_NODES:
            raise ValueError(f"more than {MOST_NODES:,} values, with all that its aliases stand for")


def _check_values(value: Any) -> None:
    """Refuse numbers and letters that other libraries fail at."""
    if isinstance(value, dict):
        for key, inner in value.items():
            _check_values(key)
            _check_values(inner)
    elif isinstance(value, list | tuple | set):
        for inner in value:
            _check_values(inner)
    elif isinstance(value, int) and abs(value) >= 2**64:
        raise ValueError("a number of more than 64 bits")
    elif isinstance(value, str):
        if "\0" in value:
            raise ValueError("a NUL character in a text")
        os.fsencode(value)  # raises at half a letter
