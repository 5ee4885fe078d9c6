"""Annotations in COCO's JSON."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from pskd.errors import PskdError, error_context
from pskd.workbench import registry
from pskd.workbench.data.detection.annotations import DetectionData, Note, Problems, Wanted, from_notes, read_size
from pskd.workbench.data.refusing import refusing
from pskd.workbench.reading import read_json
from pskd.workbench.space import free_bytes


@registry.scenes.register("coco")
def load_coco(wanted: Wanted, /) -> DetectionData:
    """Annotations in COCO's JSON, of COCO or of anybody."""
    return from_notes("coco", wanted, _read, "[train.json:images]")


def _read(root: Path, split: str, problems: Problems) -> tuple[list[Note], tuple[str, ...]]:
    """The images and the classes of "FILE.json" or "FILE.json:FOLDER", the folder that its images are in.

    Both are relative to ``root``. Crowds count as difficult. What stands there twice counts once.
    """
    name, _, folder = split.partition(":")
    file = root / name
    with refusing(f"cannot read '{file}'", "write a split as FILE.json:FOLDER", PskdError):
        tree = read_json(file, int(min(free_bytes() / 20, 2**40)))
    with error_context(f"'{file}' is not an annotation file in COCO's JSON"):
        once = partial(_once, file=file, problems=problems)
        kinds = once(once(tree["categories"], "id", "category"), "name", "category")
        categories = {item["id"]: str(item["name"]) for item in sorted(kinds, key=lambda item: item["id"])}
        images = list(once(once(tree["images"], "id", "image"), "file_name", "image"))
        by_image: dict[Any, list[Any]] = {item["id"]: [] for item in images}
        for item in once(tree["annotations"], "id", "annotation"):
            if item["image_id"] not in by_image:
                problems.add(f"{file}: annotation {item.get('id')} is of an unknown image, {item['image_id']!r}")
                continue
            x, y, width, height = map(float, item["bbox"])
            label = categories.get(item["category_id"], f"category {item['category_id']}")
            by_image[item["image_id"]].append((label, (x, y, x + width, y + height), bool(item.get("iscrowd", 0))))
        notes = [
            Note(
                str(file),
                str(Path(folder, item["file_name"])),
                read_size(item.get("height"), item.get("width")),
                by_image[item["id"]],
            )
            for item in images
        ]
    return notes, tuple(categories.values())


def _once(items: Any, key: str, what: str, *, file: Path, problems: Problems) -> Iterator[dict[str, Any]]:
    """The items without those whose ``key`` an earlier one has; an annotation may have none."""
    seen: set[Any] = set()
    for item in items:
        value = item.get(key) if what == "annotation" else item[key]
        if value in seen:
            problems.add(f"{file}: {what} {key} {value!r} stands there twice")
            continue
        if value is not None:
            seen.add(value)
        yield item
