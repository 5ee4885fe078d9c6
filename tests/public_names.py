"""The stubs that tell editors and type checkers which names `pskd` and `pskd.methods` have.

python tests/public_names.py    writes them; a test says when they are out of date
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType

import pskd
import pskd.methods

SOURCE = Path(__file__).parents[1] / "src" / "pskd"
HEAD = "# Written by tests/public_names.py.\n"


def stubs() -> dict[Path, str]:
    """The text of each stub by its file."""
    modules = [f"from {path.rpartition('.')[0]} import {name} as {name}\n" for name, path in pskd._MODULES.items()]
    rooms = [import_module(f"pskd.{room}") for room in pskd._ROOMS]
    public = "".join([*modules, *map(_imports, rooms)])
    return {
        SOURCE / "__init__.pyi": f"{HEAD}{public}\n__version__: str\n",
        SOURCE / "methods" / "__init__.pyi": HEAD + _imports(pskd.methods),
    }


def _imports(room: ModuleType) -> str:
    homes = {name: getattr(room, name).__module__ for name in room.__all__}
    inside = {name: home if home.startswith(room.__name__) else room.__name__ for name, home in homes.items()}
    return "".join(f"from {inside[name]} import {name} as {name}\n" for name in sorted(inside))


if __name__ == "__main__":
    for path, text in stubs().items():
        path.write_text(text)
