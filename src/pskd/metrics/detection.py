"""Average precision of detected boxes: PASCAL VOC's two forms, and COCO's through pycocotools.

Boxes are (x1, y1, x2, y2) in pixels, as edges: a box that covers the first pixel only is (0, 0, 1, 1). The VOC devkit
names the pixels themselves, from 1 on, and so adds 1 to each width; in edges that 1 is there already.
"""

from __future__ import annotations

import contextlib
import io
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Objects(NamedTuple):
    """What is in the images, M objects. Finding a difficult one (COCO's crowds too) counts neither way."""

    image: Ints  # (M,) the number of the image
    label: Ints  # (M,) 0..K-1
    boxes: Floats  # (M, 4)
    difficult: Bools  # (M,)


class Detections(NamedTuple):
    """What was detected, D boxes in any order; of equal scores the first counts first."""

    image: Ints  # (D,)
    label: Ints  # (D,)
    boxes: Floats  # (D, 4)
    scores: Floats  # (D,)


class VOCScores(NamedTuple):
    """AP of each class (K,) in both forms; NaN for a class of which there is no object that counts."""

    area: Floats
    eleven_point: Floats


class COCOScores(NamedTuple):
    """Means over the classes, and over IoU 0.5, 0.55 ... 0.95 for ``ap``; NaN where there is no object."""

    ap: float
    ap50: float
    ap75: float


def judged(objects: Objects, detections: Detections, num_classes: int) -> tuple[Bools, Bools]:
    """Which detections (D,) are right and which are wrong, at IoU 0.5; one of a difficult object is neither."""
    order = np.argsort(-detections.scores, kind="stable")
    image, label, boxes, scores = detections
    found = _judged(objects, Detections(image[order], label[order], boxes[order], scores[order]), num_classes, 0.5)
    right, wrong = np.empty_like(found[0]), np.empty_like(found[1])
    right[order], wrong[order] = found
    return right, wrong


def voc_average_precision(
    objects: Objects, detections: Detections, num_classes: int, iou_threshold: float = 0.5
) -> VOCScores:
    """AP by the rules of the VOC devkit: the area under the curve (from 2010 on) and the 11-point form (2007)."""
    order = np.argsort(-detections.scores, kind="stable")
    detections = Detections(
        detections.image[order], detections.label[order], detections.boxes[order], detections.scores[order]
    )
    true, false = _judged(objects, detections, num_classes, iou_threshold)
    counting = np.bincount(objects.label[~objects.difficult], minlength=num_classes)
    area, eleven = np.full((2, num_classes), np.nan)
    for label in np.flatnonzero(counting):
        of_class = detections.label == label
        hits, misses = np.cumsum(true[of_class]), np.cumsum(false[of_class])
        precision = hits / np.maximum(hits + misses, 1)
        # The best precision at this recall or a higher one.
        envelope = np.append(np.maximum.accumulate(precision[::-1])[::-1], 0.0)
        total = int(counting[label])
        area[label] = np.diff(hits, prepend=0) @ envelope[:-1] / total
        # In whole numbers: hits / total >= tenth / 10 would depend on how the quotients are rounded.
        eleven[label] = envelope[np.searchsorted(hits * 10, np.arange(11) * total)].mean()
    return VOCScores(area, eleven)


def coco_average_precision(objects: Objects, detections: Detections, num_images: int, num_classes: int) -> COCOScores:
    """pycocotools' AP over boxes of all sizes, at most 100 an image; difficult objects are its crowds."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    def made(annotations: list[dict[str, Any]]) -> Any:
        coco = COCO()
        coco.dataset = {
            "images": [{"id": image} for image in range(num_images)],
            "categories": [{"id": label} for label in range(num_classes)],
            "annotations": annotations,
        }
        coco.createIndex()
        return coco

    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints its progress
        truth = made(_annotations(objects, iscrowd=objects.difficult.astype(int).tolist()))
        found = made(_annotations(detections, score=detections.scores.tolist(), iscrowd=[0] * len(detections.image)))
        evaluation = COCOeval(truth, found, "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
    precision = evaluation.eval["precision"][:, :, :, 0, 2]  # IoU, recall, class; all sizes, 100 an image

    def mean(values: Floats) -> float:
        return float(values[values > -1].mean()) if (values > -1).any() else float("nan")

    return COCOScores(mean(precision), mean(precision[0]), mean(precision[5]))


def _judged(objects: Objects, detections: Detections, num_classes: int, threshold: float) -> tuple[Bools, Bools]:
    """Which detections, sorted by score, are right and which are wrong (D,); one of a difficult object is neither.

    A detection belongs to the object of its class and image that it overlaps most (the first of several). The best
    one of an object is right, its duplicates are wrong.
    """
    which, iou = _best_object(objects, detections, num_classes)
    overlaps = iou >= threshold
    ignored = overlaps.copy()
    ignored[overlaps] = objects.difficult[which[overlaps]]
    right = np.zeros(len(iou), dtype=bool)
    candidates = np.flatnonzero(overlaps & ~ignored)
    right[candidates[np.unique(which[candidates], return_index=True)[1]]] = True
    return right, ~right & ~ignored


def _best_object(objects: Objects, detections: Detections, num_classes: int) -> tuple[Ints, Floats]:
    """For each detection the object of its class and image with the largest IoU, and that IoU; -1 without any."""
    place = objects.image * num_classes + objects.label
    order = np.argsort(place, kind="stable")
    wanted = detections.image * num_classes + detections.label
    first = np.searchsorted(place[order], wanted, "left")
    count = np.searchsorted(place[order], wanted, "right") - first
    # All pairs of a detection and an object of its place, detection after detection.
    detection = np.repeat(np.arange(len(wanted)), count)
    starts = np.cumsum(count) - count
    candidate = order[np.arange(len(detection)) - starts[detection] + first[detection]]
    iou = _iou(detections.boxes[detection], objects.boxes[candidate])
    best, largest = np.full(len(wanted), -1), np.full(len(wanted), -1.0)
    if len(iou):
        largest[count > 0] = np.maximum.reduceat(iou, starts[count > 0])
    winners = np.flatnonzero(iou == largest[detection])
    having, at = np.unique(detection[winners], return_index=True)
    best[having] = candidate[winners[at]]
    return best, largest


def _iou(one: Floats, other: Floats) -> Floats:
    """IoU of each pair of boxes (P, 4)."""
    width, height = (np.minimum(one[:, 2:], other[:, 2:]) - np.maximum(one[:, :2], other[:, :2])).clip(min=0).T
    shared = width * height
    areas = [np.prod(boxes[:, 2:] - boxes[:, :2], axis=1) for boxes in (one, other)]
    iou: Floats = shared / np.maximum(areas[0] + areas[1] - shared, np.finfo(float).tiny)
    return iou


def _annotations(boxes: Objects | Detections, **more: list[Any]) -> list[dict[str, Any]]:
    """COCO's annotations, numbered from 1: an id of 0 would mean "no match" inside of pycocotools."""
    sizes = boxes.boxes[:, 2:] - boxes.boxes[:, :2]
    columns = {
        "id": range(1, len(boxes.image) + 1),
        "image_id": boxes.image.tolist(),
        "category_id": boxes.label.tolist(),
        "bbox": np.hstack((boxes.boxes[:, :2], sizes)).tolist(),
        "area": sizes.prod(axis=1).tolist(),
        **more,
    }
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
