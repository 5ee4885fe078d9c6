"""Predictions of two runs side by side, for chosen test samples or those on which they differ most (Figures 4, S6)."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image

from pskd.errors import PskdError
from pskd.workbench.study.results import Row, Run, baseline_of, subject_of
from pskd.workbench.use import Predictor

SHOWN, CLASSES, SIDE = 8, 4, 96  # samples, classes of each, and pixels of an image at most


class Side(NamedTuple):
    """One run's likeliest classes of a sample with their probabilities."""

    name: str
    classes: Sequence[tuple[str, float]]


class Sample(NamedTuple):
    number: int  # in the test set
    label: str
    image: str | None  # a data: address
    sides: tuple[Side, Side]


class SideBySide(NamedTuple):
    names: tuple[str, str]
    seed: int
    samples: Sequence[Sample]
    note: str
    chosen: bool


def side_by_side(rows: Sequence[Row], chosen: Sequence[int] = ()) -> SideBySide | None:
    """Two rows of a frame compared: its baseline, with the row that it is about.

    ``chosen`` are numbers of test samples, from 0; without any they are those on which the two differ most.
    """
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
    check_chosen(chosen, len(distance))
    shown = list(chosen) or distance.topk(min(SHOWN, len(distance))).indices.tolist()
    pictures, note = pictures_of(runs[0], shown, one.fingerprint)
    images = [None if picture is None else data_address(picture, SIDE) for picture in pictures]
    classes, samples = readable(one.classes), []
    for place, index in enumerate(shown):
        sides = tuple(
            Side(name, _likeliest(each.probs[index], classes)) for name, each in zip(names, (one, other), strict=True)
        )
        samples.append(Sample(index, classes[int(one.labels[index])], images[place], (sides[0], sides[1])))
    return SideBySide(names, runs[0].seed, samples, note, bool(chosen))


def check_chosen(numbers: Sequence[int], count: int) -> None:
    if wrong := [number for number in numbers if not 0 <= number < count]:
        raise PskdError(f"--samples: there is no test sample {wrong[0]}; the numbers are 0 to {count - 1}")


def readable(classes: Sequence[str]) -> Sequence[str]:
    """Words for the WordNet numbers of ImageNet's 1,000 classes, which torchvision lists in the numbers' order."""
    if len(classes) != 1000 or not all(re.fullmatch(r"n\d{8}", name) for name in classes):
        return classes
    from torchvision.models import ResNet152_Weights

    names: Sequence[str] = ResNet152_Weights.IMAGENET1K_V1.meta["categories"]
    return [names[place] for place in np.argsort(np.argsort(classes))]


def _pair(rows: Sequence[Row]) -> tuple[Row, Row] | None:
    if len(rows) < 2 or rows[0].runs[0].config.task != "classification" or rows[0].runs[0].split != "test":
        return None
    return baseline_of(rows), subject_of(rows)


def _likeliest(probs: torch.Tensor, classes: Sequence[str]) -> list[tuple[str, float]]:
    values, which = probs.topk(min(CLASSES, len(classes)))
    return [(classes[c], p) for c, p in zip(which.tolist(), values.tolist(), strict=True)]


def pictures_of(run: Run, indices: Sequence[int], fingerprint: str) -> tuple[Sequence[np.ndarray | None], str]:
    """Test samples as images (H, W, C) uint8, and what is missing if the data is not here."""
    try:
        pictures = Predictor.from_run(run.folder.path).pictures(run.config, indices, fingerprint)
    except PskdError as error:
        return [None] * len(indices), f"No images are shown ({error})."
    if pictures is None:
        return [None] * len(indices), "The data has changed since: no images are shown."
    return pictures, ""


def data_address(pixels: np.ndarray, side: int, *, photo: bool = False) -> str:
    """An image of ``side`` pixels at most as a data: address."""
    image = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    image.thumbnail((side, side))
    out, form = io.BytesIO(), "JPEG" if photo else "PNG"
    image.save(out, form, optimize=True)
    return f"data:image/{form.lower()};base64," + base64.b64encode(out.getvalue()).decode()
