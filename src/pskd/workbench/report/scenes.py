"""What detectors find on test images: boxes coloured by class, beside those that are really there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pskd.errors import PskdError
from pskd.metrics.detection import Detections, Objects, judged
from pskd.workbench.report.samples import check_chosen, data_address, pictures_of
from pskd.workbench.runs import predictions
from pskd.workbench.study.results import Row, Run, baseline_of, subject_of
from pskd.workbench.tasks.detection.drawing import class_colour

SHOWN, SIDE, SURE = 6, 360, 0.5  # images, pixels of their longer side at most, and the least score of a box


class Box(NamedTuple):
    """Edges in the image's pixels; ``said`` is its class, and its score where it was found."""

    x: float
    y: float
    width: float
    height: float
    said: str
    colour: str
    really: bool  # there, not found


class Drawn(NamedTuple):
    """An image, of so many pixels, and on it what each row found."""

    number: int
    width: int
    height: int
    image: str
    rows: Sequence[tuple[str, str, Sequence[Box]]]  # name, what it came to in words, and boxes


class Scenes(NamedTuple):
    seed: int
    images: Sequence[Drawn]
    classes: Sequence[tuple[str, str]]  # name and colour
    note: str


class _Found(NamedTuple):
    objects: Objects
    detections: Detections  # those that are sure
    right: np.ndarray  # (D,) bool
    images: int
    classes: tuple[str, ...]
    fingerprint: str


def scenes(rows: Sequence[Row], chosen: Sequence[int] = ()) -> Scenes | None:
    """Test images as the baseline and the row that a frame is about see them, those that differ most first."""
    if rows[0].runs[0].config.task != "detection" or rows[0].runs[0].split != "test":
        return None
    pair = [rows[0]] if len(rows) == 1 else [baseline_of(rows), subject_of(rows)]
    seeds = set.intersection(*({run.seed for run in row.runs} for row in pair))
    if not seeds:
        return None
    seed = min(seeds)
    runs = [next(run for run in row.runs if run.seed == seed) for row in pair]
    try:
        found = [_read(run) for run in runs]
    except (PskdError, LookupError, TypeError, ValueError):
        return None  # the file may come from a stranger
    if len({(each.fingerprint, each.classes) for each in found}) > 1:
        return None
    check_chosen(chosen, found[0].images)
    numbers = list(chosen) or _differing(found)
    images, note = pictures_of(runs[0], numbers, found[0].fingerprint)
    drawn, used = [], set[int]()
    for number, image in zip(numbers, images, strict=True):
        if image is not None:
            sides = [(row.short, *_boxes(each, number)) for row, each in zip(pair, found, strict=True)]
            used |= {int(label) for each in found for label in each.objects.label[each.objects.image == number]}
            height, width = image.shape[:2]
            drawn.append(Drawn(number, width, height, data_address(image, SIDE, photo=image.size > 60_000), sides))
    classes = [(found[0].classes[label], _css(label)) for label in sorted(used)]
    return Scenes(seed, drawn, classes, note) if drawn else None


def _read(run: Run) -> _Found:
    kept = predictions.arrays(run.folder.path)
    objects = Objects(*(kept[f"object_{name}"] for name in Objects._fields))
    detections = Detections(*(kept[f"detected_{name}"] for name in Detections._fields))
    sure = detections.scores >= SURE
    image, label, boxes, scores = detections
    detections = Detections(image[sure], label[sure], boxes[sure], scores[sure])
    classes = tuple(map(str, kept["classes"].tolist()))
    for part in (objects, detections):
        count = len(part.image)
        if {len(column) for column in part} != {count} or part.boxes.shape != (count, 4):
            raise ValueError("columns of different lengths")
        if not 0 <= part.image.min(initial=0) <= part.image.max(initial=0) < len(kept["names"]):
            raise ValueError("images that are none")
        if not 0 <= part.label.min(initial=0) <= part.label.max(initial=0) < len(classes):
            raise ValueError("numbers that are none")
        if not np.isfinite(part.boxes).all():
            raise ValueError("boxes that are none")
    return _Found(
        objects,
        detections,
        judged(objects, detections, len(classes))[0],
        len(kept["names"]),
        classes,
        str(kept["fingerprint"]),
    )


def _differing(found: Sequence[_Found]) -> list[int]:
    """Images on which one finds more than the other; of a single one those with the most mistakes."""
    count = found[0].images
    right = [np.bincount(each.detections.image[each.right], minlength=count) for each in found]
    there = np.bincount(found[0].objects.image, minlength=count)
    apart = np.abs(right[0] - right[-1]) if len(found) > 1 else there - right[0]
    return [int(place) for place in np.argsort(-apart, kind="stable")[:SHOWN]]


def _boxes(found: _Found, number: int) -> tuple[str, list[Box]]:
    objects, detections = found.objects, found.detections
    there, seen = objects.image == number, detections.image == number
    boxes = [
        _box(box, found.classes[label], int(label), really=True)
        for box, label in zip(objects.boxes[there], objects.label[there], strict=True)
    ]
    boxes += [
        _box(box, f"{found.classes[label]} {score:.2f}", int(label), really=False)
        for box, label, score in zip(
            detections.boxes[seen], detections.label[seen], detections.scores[seen], strict=True
        )
    ]
    right = int(found.right[seen].sum())
    return f"{right} of {int(there.sum())} found, {int(seen.sum()) - right} wrong", boxes


def _box(edges: np.ndarray, said: str, label: int, *, really: bool) -> Box:
    x, y, right, below = (round(float(edge), 1) for edge in edges)
    return Box(x, y, round(right - x, 1), round(below - y, 1), said, _css(label), really)


def _css(label: int) -> str:
    return "#{:02x}{:02x}{:02x}".format(*class_colour(label))
