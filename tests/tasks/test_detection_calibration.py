"""Temperatures and a threshold for a detector's scores, on detections whose chance of being right is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pskd.metrics.detection import Detections, Objects, judged
from pskd.workbench.tasks.detection.deployment import DetectionCalibration

CLASSES = ("calm", "sure", "rare")
TRUE = np.array([0.5, 3.0])  # temperatures of the first two
ABOUT = {"task": "detection", "weights": "", "fitted_on": "val"}


def drawn(count: int, seed: int) -> tuple[Objects, Detections, np.ndarray]:
    """One object and one detection in each image, right with the probability that belongs to its score."""
    draw = np.random.default_rng(seed)
    label = draw.integers(0, 2, count)
    odds = draw.normal(0, 2, count)
    chance = 1 / (1 + np.exp(-odds / TRUE[label]))
    right = draw.random(count) < chance
    boxes = np.tile([0.0, 0.0, 10.0, 10.0], (count, 1))
    found = boxes + np.where(right, 1, 50)[:, None]
    number = np.arange(count)
    objects = Objects(number, label, boxes, np.zeros(count, dtype=bool))
    return objects, Detections(number, label, found, 1 / (1 + np.exp(-odds))), right


def test_a_temperature_is_found_for_each_class() -> None:
    objects, detections, right = drawn(4000, 0)
    assert np.array_equal(judged(objects, detections, 3)[0], right)
    found = DetectionCalibration.fit(objects, detections, CLASSES, **ABOUT)
    assert found.temperatures["calm"] == pytest.approx(TRUE[0], rel=0.15)
    assert found.temperatures["sure"] == pytest.approx(TRUE[1], rel=0.15)
    assert TRUE[0] < found.temperatures["rare"] < TRUE[1]  # that of all classes together
    assert found.nll[1] < found.nll[0]
    scores = found.calibrate_scores(torch.tensor([0.9, 0.9]), ["calm", "sure"])
    assert float(scores[0]) > 0.9 > float(scores[1])


def test_the_wanted_precision_is_kept_in_most_draws() -> None:
    _, everything, right = drawn(50_000, 1)
    broken, draws, delta = 0, 40, 0.2
    for seed in range(draws):
        objects, detections, _ = drawn(300, 10 + seed)
        found = DetectionCalibration.fit(objects, detections, CLASSES, delta=delta, **ABOUT)
        kept = everything.scores >= found.min_score(0.2)
        broken += bool(kept.any()) and float((~right[kept]).mean()) > 0.2
    assert broken <= draws * delta + 2.6 * (draws * delta * (1 - delta)) ** 0.5


def test_difficult_objects_count_neither_way() -> None:
    objects, detections, right = drawn(400, 2)
    difficult = objects._replace(difficult=right.copy())
    found = judged(difficult, detections, 3)
    assert not found[0].any()
    assert np.array_equal(found[1], ~right)
