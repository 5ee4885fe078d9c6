"""Ready-made settings, one YAML file per published result; the folder a file lies in is a part of its name."""

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


def listing() -> list[str]:
    """Each recipe's name and what it says about itself."""
    width = max(map(len, names()))
    return [f"{name:<{width}}  {read_recipe(name).get('about', '')}" for name in names()]
