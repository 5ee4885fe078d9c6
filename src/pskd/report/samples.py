"""Predictions of two runs side by side, for the test samples on which they differ most (the paper's Figure 4)."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image

from pskd.errors import PskdError
from pskd.study.results import Row, Run, plain_row
from pskd.use import Predictor

SHOWN, CLASSES, SIDE = 8, 4, 96  # samples, classes of each, and pixels of an image at most


class Side(NamedTuple):
    """One run's likeliest classes of a sample with their probabilities."""

    name: str
    classes: Sequence[tuple[str, float]]


class Sample(NamedTuple):
    label: str
    image: str | None  # a data: address
    sides: tuple[Side, Side]


class SideBySide(NamedTuple):
    names: tuple[str, str]
    seed: int
    samples: Sequence[Sample]
    note: str


def side_by_side(rows: Sequence[Row]) -> SideBySide | None:
    """Two rows of a frame compared: its baseline, or else its first row, with the last of the others."""
    pair = _pair(rows)
    if pair is None:
        return None
    names = pair[0].short, pair[1].short
    runs = next(((a, b) for a in pair[0].runs for b in pair[1].runs if a.seed == b.seed), None)
    if runs is None:
        return None
    predictions = [run.predictions() for run in runs]
    one, other = predictions
    if one is None or other is None or one.classes != other.classes or one.fingerprint != other.fingerprint:
        return None
    distance = (one.probs - other.probs).abs().sum(1) / 2
    most = distance.topk(min(SHOWN, len(distance))).indices.tolist()
    images, note = _images(runs[0], most, one.fingerprint)
    samples = []
    for place, index in enumerate(most):
        sides = tuple(
            Side(name, _likeliest(each.probs[index], each.classes))
            for name, each in zip(names, (one, other), strict=True)
        )
        samples.append(Sample(one.classes[int(one.labels[index])], images[place], (sides[0], sides[1])))
    return SideBySide(names, runs[0].seed, samples, note)


def _pair(rows: Sequence[Row]) -> tuple[Row, Row] | None:
    if len(rows) < 2 or rows[0].runs[0].config.task != "classification" or rows[0].runs[0].split != "test":
        return None
    baseline = plain_row(rows) or rows[0]
    return baseline, [row for row in rows if row is not baseline][-1]


def _likeliest(probs: torch.Tensor, classes: Sequence[str]) -> list[tuple[str, float]]:
    values, which = probs.topk(min(CLASSES, len(classes)))
    return [(classes[c], p) for c, p in zip(which.tolist(), values.tolist(), strict=True)]


def _images(run: Run, indices: Sequence[int], fingerprint: str) -> tuple[list[str | None], str]:
    """Thumbnails of test samples, and what is missing if the data is not here."""
    try:
        pictures = Predictor.from_run(run.folder.path).pictures(run.config, indices, fingerprint)
    except PskdError as error:
        return [None] * len(indices), f"No images are shown ({error})."
    if pictures is None:
        return [None] * len(indices), "The data has changed since: no images are shown."
    return [_thumbnail(picture) for picture in pictures], ""


def _thumbnail(pixels: np.ndarray) -> str:
    image = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    image.thumbnail((SIDE, SIDE))
    out = io.BytesIO()
    image.save(out, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()
