"""YAML of settings: read safely, and what is wrong is said in one line with its place."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

from pskd.errors import PskdError
from pskd.workbench.reading import read_text

LARGEST_FILE = 1_000_000  # bytes of settings
MOST_NODES, DEEPEST = 100_000, 50  # of settings, with everything that aliases stand for
SAFE_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the first is that in C, ten times as fast


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file that holds a mapping."""
    tree = parsed_yaml(read_text(path, LARGEST_FILE), str(path))
    if not isinstance(tree, dict):
        raise PskdError(f"{path}: expected settings as 'key: value' lines, found {type(tree).__name__}")
    if strange := [key for key in tree if not isinstance(key, str)]:
        raise PskdError(f"{path}: the setting {strange[0]!r} is no name")
    return tree


def parsed_yaml(text: str, where: str) -> Any:
    """The value that YAML text stands for; ``where`` it was found."""
    try:
        _check_depth(text)
        loader = SAFE_LOADER(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _expanded(node, {})
            value = loader.construct_document(node)
        finally:
            loader.dispose()
        _check_values(value)
        return value
    except (yaml.YAMLError, UnicodeError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise PskdError(f"{where}{line}: not valid YAML ({getattr(error, 'problem', None) or error})") from None
    except (ValueError, TypeError, OverflowError, LookupError, AttributeError, RecursionError) as error:
        # A date, a number or a tag that YAML itself trips over.
        raise PskdError(f"{where}: not valid YAML ({(str(error) or type(error).__name__).splitlines()[0]})") from None


def _check_depth(text: str) -> None:
    """Refuse what is nested so deeply that building it would overflow the stack; events come one after the other."""
    depth = 0
    for event in yaml.parse(text, SAFE_LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise ValueError("nested too deeply")


def _expanded(node: Any, known: dict[int, int]) -> int:
    """How many nodes this one is, aliases and merges written out: they can grow without bound, or hold themselves."""
    if id(node) in known:
        if known[id(node)] == 0:
            raise ValueError("an alias stands inside of what it stands for")
        return known[id(node)]
    known[id(node)] = 0  # until it is counted
    inner: list[Any] = []
    if isinstance(node, yaml.MappingNode):
        inner = [part for pair in node.value for part in pair]
    elif isinstance(node, yaml.SequenceNode):
        inner = node.value
    known[id(node)] = count = 1 + sum(_expanded(part, known) for part in inner)
    if count > MOST_NODES:
        raise ValueError(f"its aliases stand for more than {MOST_NODES:,} values")
    return count


def _check_values(value: Any) -> None:
    """Refuse numbers and letters that nothing is called by, and that other libraries trip over."""
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
        os.fsencode(value)  # raises where a letter is half of one
