"""Annotations in COCO's JSON."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from pskd.data.detection.annotations import Note
from pskd.data.reason import reason
from pskd.errors import PskdError


def coco_notes(root: Path, split: str) -> tuple[list[Note], tuple[str, ...]]:
    """The images and the classes of "FILE.json" or "FILE.json:FOLDER", the folder that its images are in.

    Both are relative to ``root``. Crowds count as difficult.
    """
    name, _, folder = split.partition(":")
    file = root / name
    try:
        tree = json.loads(file.read_text())
        categories = {item["id"]: str(item["name"]) for item in sorted(tree["categories"], key=lambda item: item["id"])}
        by_image: dict[Any, list[Any]] = defaultdict(list)
        for item in tree["annotations"]:
            x, y, width, height = map(float, item["bbox"])
            label = categories.get(item["category_id"], f"category {item['category_id']}")
            by_image[item["image_id"]].append((label, (x, y, x + width, y + height), bool(item.get("iscrowd", 0))))
        notes = [
            Note(str(file), str(Path(folder, item["file_name"])), _size(item), by_image[item["id"]])
            for item in tree["images"]
        ]
    except OSError as error:
        raise PskdError(
            f"cannot read '{file}' ({reason(error)}): write a split as FILE.json:FOLDER, below data.root"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PskdError(f"'{file}' is not an annotation file in COCO's JSON ({error!r})") from error
    return notes, tuple(categories.values())


def _size(item: dict[str, Any]) -> tuple[int, int] | None:
    height, width = int(item.get("height", 0)), int(item.get("width", 0))
    return (height, width) if height > 0 and width > 0 else None
