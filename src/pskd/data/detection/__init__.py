"""Data sets of images with labelled boxes: what they are, where they come from, and how they are split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from pskd.data.detection.annotations import Note, Problems, checked
from pskd.data.detection.coco import coco_notes
from pskd.data.detection.digits import digit_scenes
from pskd.data.detection.scenes import Scene, Scenes
from pskd.data.detection.voc import VOC_CLASSES, folder_notes, voc_notes
from pskd.errors import PskdError
from pskd.random import shuffled

__all__ = ["NAMES", "DetectionData", "Scene", "Scenes", "load"]

NAMES = ("digits", "voc", "voc_folder", "coco")
DIGIT_SCENES = {"train": 600, "test": 200}


@dataclass(frozen=True)
class DetectionData:
    """Class names (a label is a position among them), splits, and what was left out, line by line."""

    classes: tuple[str, ...]
    train: Scenes
    val: Scenes | None
    test: Scenes
    notes: tuple[str, ...]


def load(
    name: str,
    *,
    splits: Mapping[str, Sequence[str]],
    counts: Mapping[str, int | None],
    root: str | None = None,
    classes: Sequence[str] = (),
    download: bool = False,
    skip_bad: bool = False,
    seed: int = 0,
) -> DetectionData:
    """Load a data set.

    Args:
        name: one of ``NAMES``.
        splits: the published splits that make up "train", "val" and "test"; `digits` has none.
        counts: how many images of each to make (digits) or to keep, drawn by the seed; None keeps all.
        root: the folder that holds the files.
        classes: of a `voc_folder`; by default all that its training annotations name.
        download: fetch VOC if it is missing.
        skip_bad: leave out what is wrong with the annotations and note it, instead of refusing.
        seed: of ``counts``, of all but the test images.
    """
    if name == "digits":
        scene_counts = {split: counts[split] or DIGIT_SCENES.get(split) for split in counts}
        made = {split: digit_scenes(split, count, seed) for split, count in scene_counts.items() if count}
        return DetectionData(tuple("0123456789"), made["train"], made.get("val"), made["test"], ())
    if name not in NAMES:
        raise PskdError(f"data.name={name} is unknown: take one of {', '.join(NAMES)}")
    if root is None:
        raise PskdError(f"'{name}' needs data.root=..., the folder that holds it")
    for split in ("train", "test"):
        if not splits[split]:
            raise PskdError(f"data.{split} is empty: name the splits of '{name}' to take, such as {_EXAMPLES[name]}")
    place, problems = Path(root).expanduser(), Problems(skip_bad)
    notes: dict[str, list[Note]] = {}
    for split, parts in splits.items():
        notes[split] = []
        for part in parts:
            match name:
                case "voc":
                    notes[split] += voc_notes(place, part, download, problems)
                case "voc_folder":
                    notes[split] += folder_notes(place, part, problems)
                case "coco":
                    more, categories = coco_notes(place, part, problems)
                    notes[split] += more
                    classes = classes or categories  # the first training file's
    if name == "voc":
        classes = VOC_CLASSES
    elif not classes:
        classes = sorted({label for note in notes["train"] for label, _, _ in note.objects})
    scenes = {split: checked(notes[split], classes, place, problems) for split in notes}
    said = problems.settle()
    for split, wanted in counts.items():
        total = len(scenes[split])
        if wanted is not None and splits[split]:
            if wanted > total:
                raise PskdError(f"data.{split}_images={wanted}: there are {total} in {', '.join(splits[split])}")
            own_seed, stream = 0 if split == "test" else seed, f"{split} images"
            drawn = shuffled(torch.arange(total), seed=own_seed, epoch=0, stream=stream)[:wanted]
            scenes[split] = scenes[split].subset(drawn.sort().values)
    for split, parts in splits.items():
        if parts and bool(scenes[split].difficult.all()):
            raise PskdError(f"data.{split}: {', '.join(parts)} of '{place}' has no object to learn or to test")
    return DetectionData(
        tuple(classes), scenes["train"], scenes["val"] if splits["val"] else None, scenes["test"], tuple(said)
    )


_EXAMPLES = {"voc": "[2007/trainval, 2012/trainval]", "voc_folder": "[train]", "coco": "[train.json:images]"}
