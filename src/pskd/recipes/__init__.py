"""Ready-made settings, one YAML file per published result; the folder a file lies in is a part of its name.

Beside settings a recipe has `about` (one line), `tables` (where the paper shows it), `methods` (each method's constants
for its model) and `laptop` (what `scale=laptop` changes in it).
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

from pskd.errors import PskdError

_FOLDER = Path(__file__).parent


def names() -> list[str]:
    return sorted(str(file.relative_to(_FOLDER).with_suffix("")) for file in _FOLDER.rglob("*.yaml"))


def find(name: str) -> Path:
    """The file of a recipe, or of the user's own if ``name`` is a path to one."""
    if name.endswith((".yaml", ".yml")):
        if not Path(name).is_file():
            raise PskdError(f"{name}: there is no such file")
        return Path(name)
    if name not in names():
        near = difflib.get_close_matches(name, names(), 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names())}"
        raise PskdError(f"{name!r} is not a recipe; {hint} (your own ends in .yaml)")
    return _FOLDER / f"{name}.yaml"


def read_recipe(name: str) -> dict[str, Any]:
    from pskd.config import read_yaml

    return read_yaml(find(name))


def laptop_overlay(task: str) -> dict[str, Any]:
    """What `scale=laptop` changes in every recipe of a task."""
    from pskd.config import read_yaml

    return dict(read_yaml(_FOLDER / "laptop.overlay").get(task, {}))


def listing() -> list[str]:
    """The recipes' names and what they say about themselves, table by table of the paper."""
    recipes = {name: read_recipe(name) for name in names()}
    tables = sorted({table for recipe in recipes.values() for table in recipe.get("tables", [])})
    width = max(map(len, recipes))
    lines: list[str] = []
    for table in ["", *tables]:
        inside = [name for name, recipe in recipes.items() if table in recipe.get("tables", [""])]
        heading = f"The paper's {table}:" if table else "To start with:"
        lines += [heading, *(f"  {name:<{width}}  {recipes[name].get('about', '')}" for name in inside), ""]
    return [
        *lines,
        "Any of them with scale=laptop: a small model, a part of the data, few epochs; it says what it changes.",
    ]
