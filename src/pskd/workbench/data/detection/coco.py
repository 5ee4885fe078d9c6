"""Annotations in COCO's JSON."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from pskd.errors import RECOVERABLE, PskdError
from pskd.workbench import registry
from pskd.workbench.data.detection.annotations import Note, Problems, check_side
from pskd.workbench.data.detection.reading import DetectionData, Wanted, from_notes
from pskd.workbench.reading import read_json
from pskd.workbench.space import free_bytes


@registry.scenes.register("coco")
def load_coco(wanted: Wanted, /) -> DetectionData:
    """Annotations in COCO's JSON, of COCO or of anybody."""
    return from_notes("coco", wanted, coco_notes, "[train.json:images]")


def coco_notes(root: Path, split: str, problems: Problems) -> tuple[list[Note], tuple[str, ...]]:
    """The images and the classes of "FILE.json" or "FILE.json:FOLDER", the folder that its images are in.

    Both are relative to ``root``. Crowds count as difficult. What stands there twice counts once.
    """
    name, _, folder = split.partition(":")
    file = root / name
    try:
        tree = read_json(file, int(min(free_bytes() / 20, 2**40)))
    except PskdError as error:
        raise PskdError(f"cannot read '{file}' ({error}): write a split as FILE.json:FOLDER") from error
    try:
        once = partial(_once, file=file, problems=problems)
        kinds = once(once(tree["categories"], "id", "category"), "name", "category")
        categories = {item["id"]: str(item["name"]) for item in sorted(kinds, key=lambda item: item["id"])}
        images = once(once(tree["images"], "id", "image"), "file_name", "image")
        by_image: dict[Any, list[Any]] = {item["id"]: [] for item in images}
        for item in once(tree["annotations"], "id", "annotation"):
            if item["image_id"] not in by_image:
                problems.add(f"{file}: annotation {item.get('id')} is of an unknown image, {item['image_id']!r}")
                continue
            x, y, width, height = map(float, item["bbox"])
            label = categories.get(item["category_id"], f"category {item['category_id']}")
            by_image[item["image_id"]].append((label, (x, y, x + width, y + height), bool(item.get("iscrowd", 0))))
        notes = [
            Note(str(file), str(Path(folder, item["file_name"])), _size(item), by_image[item["id"]]) for item in images
        ]
    except RECOVERABLE as error:
        raise PskdError(f"'{file}' is not an annotation file in COCO's JSON ({error!r})") from error
    return notes, tuple(categories.values())


def _once(items: list[dict[str, Any]], key: str, what: str, *, file: Path, problems: Problems) -> list[dict[str, Any]]:
    """The items without those whose ``key`` another one before has; an annotation may have none."""
    seen: set[Any] = set()
    kept = []
    for item in items:
        value = item.get(key) if what == "annotation" else item[key]
        if value in seen:
            problems.add(f"{file}: {what} {key} {value!r} stands there twice")
            continue
        if value is not None:
            seen.add(value)
        kept.append(item)
    return kept


def _size(item: dict[str, Any]) -> tuple[int, int] | None:
    height, width = int(item.get("height", 0)), int(item.get("width", 0))
    check_side(height, width)
    return (height, width) if height > 0 and width > 0 else None
