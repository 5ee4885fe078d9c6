"""Ready-made settings, one YAML file per published result; the folder a file lies in is a part of its name.

Beside settings a recipe has `about` (one line), `tables` (where the paper shows it), `methods` (each method's constants
for its model) and `laptop` (what `scale=laptop` changes in it). The folder `studies` holds studies, which are made of
runs of these recipes.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

from pskd.errors import PskdError
from pskd.workbench.config.yaml_file import read_yaml

_FOLDER = Path(__file__).parent


def names() -> list[str]:
    """The recipes of a run."""
    return sorted(set(_all_names()) - set(study_names()))


def study_names() -> list[str]:
    return [name for name in _all_names() if name.startswith("studies/")]


def find(name: str) -> Path:
    """The file of a recipe or a study, or of the user's own if ``name`` is a path to one."""
    if name.endswith((".yaml", ".yml")):
        if not Path(name).is_file():
            raise PskdError(f"{name}: there is no such file")
        return Path(name)
    kind, there = ("study", study_names()) if name.startswith("studies/") else ("recipe", names())
    if name not in there:
        near = difflib.get_close_matches(name, _all_names(), 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(there)}"
        raise PskdError(f"{name!r} is not a {kind}; {hint} (your own ends in .yaml)")
    return _FOLDER / f"{name}.yaml"


def read_recipe(name: str) -> dict[str, Any]:
    return read_yaml(find(name))


def _all_names() -> list[str]:
    return sorted(str(file.relative_to(_FOLDER).with_suffix("")) for file in _FOLDER.rglob("*.yaml"))


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
    studies = {name: read_recipe(name).get("about", "") for name in study_names()}
    width = max(map(len, studies))
    return [
        *lines,
        "Studies (pskd study run NAME --out DIR):",
        *(f"  {name:<{width}}  {about}" for name, about in studies.items()),
        "",
        "Any of them with scale=laptop: a small model, a part of the data, few epochs; it says what it changes.",
    ]
