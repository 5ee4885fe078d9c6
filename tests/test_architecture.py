"""Every line knows its room: a room imports only rooms below it, and no two rooms import each other."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from pskd.workbench.registry import methods

PACKAGE = Path(__file__).parents[1] / "src" / "pskd"

# From the ground up. Rooms of one line may know each other, but not in a circle. docs/architecture.md says the same.
CORE = (
    ("errors",),
    ("settings", "tensors", "schedules"),
    ("calibration", "checks", "random", "targets", "linear_head", "indexed", "plan", "sampler"),
    ("door",),
    ("memory", "methods", "metrics"),
    ("integrations",),
)
WORKBENCH = (
    ("registry", "space", "reading", "buffers"),
    ("config", "recipes"),
    ("data", "augment", "models"),
    ("runs",),
    ("tasks",),
    ("train", "use"),
    ("study",),
    ("analysis",),
    ("report",),
    ("api",),
    ("cli",),
)
LAYERS = (*CORE, *(tuple(f"workbench/{room}" for room in rooms) for rooms in WORKBENCH), ("__main__", "__init__"))
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms} | {"workbench/__init__": 0}
FILES = sorted(PACKAGE.rglob("*.py"))


def room_of(parts: tuple[str, ...]) -> str:
    return "/".join(parts[: 2 if parts[0] == "workbench" else 1]).removesuffix(".py")


def imports(path: Path) -> set[str]:
    """The rooms that a file imports, inside of functions and for type checking too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "pskd":
            parts = tuple(str(node.module).split(".")[1:])
            found |= {room_of((*parts, alias.name)) for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {room_of(tuple(alias.name.split(".")[1:])) for alias in node.names if alias.name[:5] == "pskd."}
    return (found & LEVEL.keys()) - {room_of(path.relative_to(PACKAGE).parts)}


GRAPH: dict[str, set[str]] = {}
for _path in FILES:
    GRAPH.setdefault(room_of(_path.relative_to(PACKAGE).parts), set()).update(imports(_path))


def test_every_room_has_its_place() -> None:
    assert GRAPH.keys() == LEVEL.keys()


def test_a_room_knows_only_rooms_below_it() -> None:
    for room, known in GRAPH.items():
        above = sorted(other for other in known if LEVEL[other] > LEVEL[room])
        assert not above, f"{room} imports {above}, which are above it"


def test_no_rooms_import_each_other_in_a_circle() -> None:
    def reached(room: str) -> set[str]:
        seen: set[str] = set()
        todo = [room]
        while todo:
            for other in GRAPH[todo.pop()] - seen:
                seen.add(other)
                todo.append(other)
        return seen

    assert [room for room in GRAPH if room in reached(room)] == []


def test_training_and_use_do_not_know_each_other() -> None:
    assert "workbench/use" not in GRAPH["workbench/train"]
    assert "workbench/train" not in GRAPH["workbench/use"]


def test_no_method_is_known_by_name_outside_of_its_file() -> None:
    """Neither by its class nor by the name it is registered with."""
    names = {*methods.names(), *(methods.find(name).__name__ for name in methods.names())} - {"hard"}
    quoted = "|".join(sorted(names))
    for path in FILES:
        if not room_of(path.relative_to(PACKAGE).parts).startswith("workbench") or path.name == "classes.py":
            continue  # config/classes.py says which method is the default
        found = re.findall(
            rf"import .*\b(?:{quoted})\b|isinstance\(.*\b(?:{quoted})\b|\"(?:{quoted})\"", path.read_text()
        )
        assert not found, f"{path.relative_to(PACKAGE)} names {found}"


def test_no_file_is_too_long() -> None:
    assert {str(path): count for path in FILES if (count := path.read_text().count("\n")) > 400} == {}
