"""VOC's AP against a slow transcription of the devkit's rules, COCO's against pycocotools itself."""

from __future__ import annotations

import contextlib
import io
import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from pskd.metrics.detection import Detections, Objects, coco_average_precision, voc_average_precision

CLASSES, IMAGES = 5, 12


def random_case(seed: int) -> tuple[Objects, Detections]:
    """Boxes on whole pixels, some difficult, hit several times, missed or made up; scores tie; a class is empty."""
    draw = np.random.default_rng(seed)
    count = int(draw.integers(1, 60))
    corners = draw.integers(0, 40, (count, 2))
    boxes = np.hstack((corners, corners + draw.integers(1, 25, (count, 2)))).astype(float)
    label = draw.integers(0, CLASSES - 1, count)
    objects = Objects(draw.integers(0, IMAGES, count), label, boxes, draw.random(count) < 0.25)
    hit = draw.integers(0, count, 2 * count)
    shaken = boxes[hit] + draw.integers(-4, 5, (len(hit), 4))
    shaken[:, 2:] = np.maximum(shaken[:, 2:], shaken[:, :2] + 1)
    labels = np.where(draw.random(len(hit)) < 0.8, label[hit], draw.integers(0, CLASSES, len(hit)))
    scores = draw.integers(0, 10, len(hit)) / 10
    return objects, Detections(objects.image[hit], labels, shaken, scores)


def devkit(objects: Objects, detections: Detections, wanted: int) -> tuple[float, float]:
    """VOCevaldet.m and VOCap.m line by line, in exact fractions: the area form and the 11-point form."""

    def pixels(box: np.ndarray) -> list[Fraction]:  # the devkit names pixels, from 1 on, both ends inside
        return [Fraction(box[0]) + 1, Fraction(box[1]) + 1, Fraction(box[2]), Fraction(box[3])]

    gt = [
        {"image": objects.image[j], "bb": pixels(objects.boxes[j]), "diff": objects.difficult[j], "det": False}
        for j in range(len(objects.image))
        if objects.label[j] == wanted
    ]
    npos = sum(not g["diff"] for g in gt)
    if npos == 0:
        return math.nan, math.nan
    mine = [d for d in range(len(detections.image)) if detections.label[d] == wanted]
    tp, fp = [], []
    for d in sorted(mine, key=lambda d: -detections.scores[d]):
        bb = pixels(detections.boxes[d])
        ovmax, jmax = Fraction(-1), None
        for j, g in enumerate(gt):
            if g["image"] != detections.image[d]:
                continue
            bbgt = g["bb"]
            bi = [max(bb[0], bbgt[0]), max(bb[1], bbgt[1]), min(bb[2], bbgt[2]), min(bb[3], bbgt[3])]
            iw, ih = bi[2] - bi[0] + 1, bi[3] - bi[1] + 1
            if iw > 0 and ih > 0:
                ua = (bb[2] - bb[0] + 1) * (bb[3] - bb[1] + 1) + (bbgt[2] - bbgt[0] + 1) * (bbgt[3] - bbgt[1] + 1)
                ov = iw * ih / (ua - iw * ih)
                if ov > ovmax:
                    ovmax, jmax = ov, j
        hit = miss = False
        if ovmax >= Fraction(1, 2):
            assert jmax is not None
            if not gt[jmax]["diff"]:
                hit, miss = not gt[jmax]["det"], gt[jmax]["det"]
                gt[jmax]["det"] = True
        else:
            miss = True
        tp.append(sum(tp[-1:]) + hit)
        fp.append(sum(fp[-1:]) + miss)
    rec = [Fraction(t, npos) for t in tp]
    prec = [Fraction(t, t + f) if t + f else Fraction(0) for t, f in zip(tp, fp, strict=True)]
    eleven = Fraction(0)
    for t in range(11):
        eleven += max([p for p, r in zip(prec, rec, strict=True) if r >= Fraction(t, 10)], default=Fraction(0)) / 11
    mrec, mpre = [Fraction(0), *rec, Fraction(1)], [Fraction(0), *prec, Fraction(0)]
    for i in range(len(mpre) - 2, -1, -1):
        mpre[i] = max(mpre[i], mpre[i + 1])
    area = sum((mrec[i] - mrec[i - 1]) * mpre[i] for i in range(1, len(mrec)) if mrec[i] != mrec[i - 1])
    return float(area), float(eleven)


@pytest.mark.parametrize("seed", range(30))
def test_voc_is_the_devkits(seed: int) -> None:
    objects, detections = random_case(seed)
    scores = voc_average_precision(objects, detections, CLASSES)
    expected = np.array([devkit(objects, detections, label) for label in range(CLASSES)])
    np.testing.assert_allclose(scores.area, expected[:, 0], atol=1e-12)
    np.testing.assert_allclose(scores.eleven_point, expected[:, 1], atol=1e-12)
    assert np.isnan(scores.area[CLASSES - 1])


def test_nothing_detected_and_nothing_there() -> None:
    objects, detections = random_case(0)
    none = Detections(*(values[:0] for values in detections))
    assert set(voc_average_precision(objects, none, CLASSES).area[: CLASSES - 1]) == {0.0}
    assert coco_average_precision(objects, none, IMAGES, CLASSES).ap == 0
    nothing = Objects(*(values[:0] for values in objects))
    assert np.isnan(voc_average_precision(nothing, detections, CLASSES).eleven_point).all()
    assert math.isnan(coco_average_precision(nothing, detections, IMAGES, CLASSES).ap)


@pytest.mark.parametrize("seed", range(4))
def test_coco_is_pycocotools(seed: int, tmp_path: Path) -> None:
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    objects, detections = random_case(seed)

    def bbox(box: np.ndarray) -> list[float]:
        return [box[0], box[1], box[2] - box[0], box[3] - box[1]]

    annotations = [
        {
            "id": number + 7,
            "image_id": int(image) + 100,
            "category_id": int(label) + 3,
            "bbox": bbox(box),
            "area": bbox(box)[2] * bbox(box)[3],
            "iscrowd": int(difficult),
        }
        for number, (image, label, box, difficult) in enumerate(zip(*objects, strict=True))
    ]
    truth, found = tmp_path / "truth.json", tmp_path / "found.json"
    images, categories = [{"id": i + 100} for i in range(IMAGES)], [{"id": c + 3} for c in range(CLASSES)]
    truth.write_text(json.dumps({"images": images, "categories": categories, "annotations": annotations}))
    results = [
        {"image_id": int(i) + 100, "category_id": int(c) + 3, "bbox": bbox(box), "score": float(score)}
        for i, c, box, score in zip(*detections, strict=True)
    ]
    found.write_text(json.dumps(results))
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO(str(truth))
        direct = COCOeval(coco, coco.loadRes(str(found)), "bbox")
        direct.evaluate()
        direct.accumulate()
        direct.summarize()
    ours = coco_average_precision(objects, detections, IMAGES, CLASSES)
    assert tuple(ours) == pytest.approx(direct.stats[:3].tolist(), abs=1e-12)
    assert 0 < ours.ap < ours.ap50 < 1
