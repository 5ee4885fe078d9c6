"""Predictions of two runs side by side, for chosen test samples or those on which they differ most (Figures 4, S6)."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image
from torch import Tensor

from pskd.errors import PskdError
from pskd.workbench.study.results import FinishedRun, Row, baseline_of, subject_of
from pskd.workbench.use import Predictor

SHOWN, CLASSES, SIDE = 8, 4, 96  # samples, classes of each, and pixels of an image at most


class ShownSample(NamedTuple):
    """A test sample, its image as a data: address, and by row the most likely classes with their probabilities."""

    number: int
    label: str
    image: str | None
    guesses: Mapping[str, Sequence[tuple[str, float]]]


class SideBySide(NamedTuple):
    """What the page shows of two rows."""

    names: Sequence[str]
    seed: int
    samples: Sequence[ShownSample]
    note: str
    chosen: bool


def side_by_side(rows: Sequence[Row], chosen: Sequence[int] = ()) -> SideBySide | None:
    """The baseline of a group compared with the row that the group is about.

    ``chosen`` are numbers of test samples, from 0; without any they are those on which the two differ most.
    """
    pair = comparable_runs(rows, "classification")
    if len(pair) < 2:
        return None
    names, runs = tuple(pair), list(pair.values())
    one, other = (run.predictions() for run in runs)
    if one is None or other is None or one.classes != other.classes or one.fingerprint != other.fingerprint:
        return None
    distance = (one.probs - other.probs).abs().sum(1) / 2
    check_chosen(chosen, len(distance))
    numbers = list(chosen) or distance.topk(min(SHOWN, len(distance))).indices.tolist()
    pictures, note = load_pictures(runs[0], numbers, one.fingerprint)
    classes, samples = name_classes(one.classes), []
    for number, picture in zip(numbers, pictures, strict=True):
        image = None if picture is None else data_address(picture, SIDE)
        guesses = {
            name: _likeliest(made.probs[number], classes) for name, made in zip(names, (one, other), strict=True)
        }
        samples.append(ShownSample(number, classes[int(one.labels[number])], image, guesses))
    return SideBySide(names, runs[0].seed, samples, note, bool(chosen))


def comparable_runs(rows: Sequence[Row], task: str) -> dict[str, FinishedRun]:
    """Runs of one seed on the test set: of the baseline and of the row that the group is about, or of a single row."""
    first = rows[0].runs[0]
    if first.config.task != task or first.split != "test":
        return {}
    pair = [rows[0]] if len(rows) == 1 else [baseline_of(rows), subject_of(rows)]
    by_seed = [{run.seed: run for run in row.runs} for row in pair]
    shared = [seed for seed in by_seed[0] if all(seed in runs for runs in by_seed)]
    return {row.short: runs[shared[0]] for row, runs in zip(pair, by_seed, strict=True)} if shared else {}


def check_chosen(numbers: Sequence[int], count: int) -> None:
    if wrong := [number for number in numbers if not 0 <= number < count]:
        raise PskdError(f"--samples: there is no test sample {wrong[0]}; the numbers are 0 to {count - 1}")


def name_classes(classes: Sequence[str]) -> Sequence[str]:
    """Words instead of the WordNet numbers of ImageNet's 1,000 classes, which torchvision lists in numerical order."""
    if len(classes) != 1000 or not all(re.fullmatch(r"n\d{8}", name) for name in classes):
        return classes
    from torchvision.models import ResNet152_Weights

    names: Sequence[str] = ResNet152_Weights.IMAGENET1K_V1.meta["categories"]
    return [names[place] for place in np.argsort(np.argsort(classes))]


def _likeliest(probs: Tensor, classes: Sequence[str]) -> list[tuple[str, float]]:
    values, which = probs.topk(min(CLASSES, len(classes)))
    return [(classes[place], value) for place, value in zip(which.tolist(), values.tolist(), strict=True)]


def load_pictures(
    run: FinishedRun, numbers: Sequence[int], fingerprint: str
) -> tuple[Sequence[np.ndarray | None], str]:
    """Test samples as images (H, W, C) uint8, and why there are none if the data is not here."""
    try:
        pictures = Predictor.from_run(run.folder.path).pictures(run.config, numbers, fingerprint)
    except PskdError as error:
        return [None] * len(numbers), f"No images are shown ({error})."
    if pictures is None:
        return [None] * len(numbers), "The data has changed since: no images are shown."
    return pictures, ""


def data_address(pixels: np.ndarray, side: int, *, photo: bool = False) -> str:
    """An image of at most ``side`` pixels as a data: address."""
    image = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    image.thumbnail((side, side))
    out, form = io.BytesIO(), "JPEG" if photo else "PNG"
    image.save(out, form, optimize=True)
    return f"data:image/{form.lower()};base64," + base64.b64encode(out.getvalue()).decode()
