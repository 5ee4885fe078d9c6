"""Every line knows its room: a room imports only rooms below it, and no two rooms import each other."""

from __future__ import annotations

import ast
import re
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "pskd"

# From the ground up; the first five lines are the core. Rooms of one line may know each other, but not in a circle.
# docs/architecture.md says the same.
LAYERS = (
    ("errors", "space", "reading"),
    ("names", "settings", "tensors", "schedules", "fused"),
    ("calibration", "checks", "random", "targets", "linear_head", "indexed", "plan", "sampler"),
    ("door",),
    ("memory", "methods", "metrics"),
    ("integrations",),
    ("registry",),
    ("config", "recipes"),
    ("data", "augment", "models"),
    ("runs",),
    ("tasks",),
    ("engine", "use"),
    ("study",),
    ("analysis",),
    ("report",),
    ("api",),
    ("cli",),
    ("__main__", "__init__"),
)
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
CORE = {room for rooms in LAYERS[:5] for room in rooms}


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """The rooms that a file imports, inside of functions and for type checking too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "pskd":
            found |= {alias.name for alias in node.names if alias.name in LEVEL}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pskd."):
            found.add(str(node.module).split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("pskd.")}
    return found - {room_of(path)}


FILES = sorted(PACKAGE.rglob("*.py"))


def test_every_room_has_its_place() -> None:
    assert {room_of(path) for path in FILES} == set(LEVEL)


def test_a_room_knows_only_rooms_below_it() -> None:
    for path in FILES:
        above = {room for room in imports(path) if LEVEL[room] > LEVEL[room_of(path)]}
        assert not above, f"{path.relative_to(PACKAGE)} imports {sorted(above)}, which are above it"


def test_no_rooms_import_each_other_in_a_circle() -> None:
    graph: dict[str, set[str]] = {room: set() for room in LEVEL}
    for path in FILES:
        graph[room_of(path)] |= imports(path)
    graph.pop("__init__")

    def reached(room: str) -> set[str]:
        seen: set[str] = set()
        todo = [room]
        while todo:
            for other in graph.get(todo.pop(), set()) - seen:
                seen.add(other)
                todo.append(other)
        return seen

    assert [room for room in graph if room in reached(room)] == []


def test_training_and_use_do_not_know_each_other() -> None:
    for path in FILES:
        if room_of(path) in ("engine", "use"):
            assert not imports(path) & {"engine", "use"} - {room_of(path)}


def test_no_method_is_known_by_name_outside_of_its_file() -> None:
    for path in FILES:
        if room_of(path) in ("engine", "tasks", "report", "analysis", "study", "runs"):
            text = path.read_text()
            found = re.findall(r"\b(?:PSKD|TFKD|CSKD)\b|\"(?:ps_kd|tf_kd|cs_kd|label_smoothing)\"", text)
            assert not found, f"{path.relative_to(PACKAGE)} names {found}"


def test_no_file_is_too_long() -> None:
    assert {str(path): count for path in FILES if (count := path.read_text().count("\n")) > 400} == {}
