"""What detectors detect on test images: boxes coloured by class, beside the true objects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from pskd.errors import PskdError
from pskd.metrics.detection import Detections, Objects, judged
from pskd.workbench.report.samples import check_chosen, comparable_runs, data_address, load_pictures
from pskd.workbench.runs import predictions
from pskd.workbench.study.results import FinishedRun, Row
from pskd.workbench.tasks.detection.predictor import class_colour

SHOWN, SIDE, LEAST_SCORE = 6, 360, 0.5  # images, pixels of their longer side at most, and the least score of a box


class DrawnBox(NamedTuple):
    """A box in the image's pixels; ``text`` is its class and, for a detection, its score."""

    x: float
    y: float
    width: float
    height: float
    text: str
    colour: str
    is_object: bool  # a true object, not a detection


class DrawnImage(NamedTuple):
    """An image, its size in pixels, and what each row detected on it."""

    number: int
    width: int
    height: int
    image: str
    rows: Sequence[tuple[str, str, Sequence[DrawnBox]]]  # name, result in words, and boxes


class DetectionPictures(NamedTuple):
    """What the page shows of detectors."""

    seed: int
    images: Sequence[DrawnImage]
    classes: Sequence[tuple[str, str]]  # name and colour
    note: str


class StoredDetections(NamedTuple):
    """A run's predictions.npz: the objects of the test images, and detections of at least ``LEAST_SCORE``."""

    objects: Objects
    detections: Detections
    right: np.ndarray  # (D,) bool
    images: int
    classes: tuple[str, ...]
    fingerprint: str

    def boxes(self, number: int) -> Iterator[DrawnBox]:
        """Objects and detections of one image."""
        for part, is_object in ((self.objects, True), (self.detections, False)):
            for place in np.flatnonzero(part.image == number):
                label = int(part.label[place])
                score = "" if is_object else f" {self.detections.scores[place]:.2f}"
                x, y, right, bottom = (round(float(edge), 1) for edge in part.boxes[place])
                size = round(right - x, 1), round(bottom - y, 1)
                yield DrawnBox(x, y, *size, f"{self.classes[label]}{score}", _css_colour(label), is_object)

    def in_words(self, number: int) -> str:
        """`3 of 4 found, 1 wrong`"""
        right = self.right[self.detections.image == number]
        objects = int((self.objects.image == number).sum())
        return f"{int(right.sum())} of {objects} found, {int((~right).sum())} wrong"


def draw_detections(rows: Sequence[Row], chosen: Sequence[int] = ()) -> DetectionPictures | None:
    """Test images with what the baseline and the row that the group is about detect, those that differ most first."""
    pair = comparable_runs(rows, "detection")
    if not pair:
        return None
    runs = list(pair.values())
    try:
        stored = {name: _read(run) for name, run in pair.items()}
    except (PskdError, LookupError, TypeError, ValueError):
        return None  # the file may come from a stranger
    every = list(stored.values())
    first = every[0]
    if len({(each.fingerprint, each.classes) for each in every}) > 1:
        return None
    check_chosen(chosen, first.images)
    numbers = list(chosen) or _most_different(every)
    pictures, note = load_pictures(runs[0], numbers, first.fingerprint)
    images, labels = [], set[int]()
    for number, picture in zip(numbers, pictures, strict=True):
        if picture is not None:
            height, width = picture.shape[:2]
            address = data_address(picture, SIDE, photo=picture.size > 60_000)
            sides = [(name, each.in_words(number), list(each.boxes(number))) for name, each in stored.items()]
            images.append(DrawnImage(number, width, height, address, sides))
            labels |= set(first.objects.label[first.objects.image == number].tolist())
    classes = [(first.classes[label], _css_colour(label)) for label in sorted(labels)]
    return DetectionPictures(runs[0].seed, images, classes, note) if images else None


def _read(run: FinishedRun) -> StoredDetections:
    arrays = predictions.arrays(run.folder.path)
    objects = Objects(*(arrays[f"object_{name}"] for name in Objects._fields))
    confident = arrays["detected_scores"] >= LEAST_SCORE
    detections = Detections(*(arrays[f"detected_{name}"][confident] for name in Detections._fields))
    classes, images = tuple(map(str, arrays["classes"].tolist())), len(arrays["names"])
    for part in (objects, detections):
        count = len(part.image)
        if {len(column) for column in part} != {count} or part.boxes.shape != (count, 4):
            raise ValueError("columns of different lengths")
        for numbers, limit in ((part.image, images), (part.label, len(classes))):
            if not 0 <= numbers.min(initial=0) <= numbers.max(initial=0) < limit:
                raise ValueError("unknown images or classes")
        if not np.isfinite(part.boxes).all():
            raise ValueError("boxes without a place")
    right, _ = judged(objects, detections, len(classes))
    return StoredDetections(objects, detections, right, images, classes, str(arrays["fingerprint"]))


def _most_different(stored: Sequence[StoredDetections]) -> list[int]:
    """The images on which one detector finds more than the other; of a single one those with most objects missed."""
    count = stored[0].images
    right = [np.bincount(each.detections.image[each.right], minlength=count) for each in stored]
    objects = np.bincount(stored[0].objects.image, minlength=count)
    difference = np.abs(right[0] - right[1]) if len(stored) > 1 else objects - right[0]
    return [int(place) for place in np.argsort(-difference, kind="stable")[:SHOWN]]


def _css_colour(label: int) -> str:
    return "#{:02x}{:02x}{:02x}".format(*class_colour(label))
