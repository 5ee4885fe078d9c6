"""What is asked of a data set of images with boxes, and how annotation files become one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from pskd.errors import PskdError
from pskd.random import shuffled
from pskd.workbench.data.detection.annotations import Note, Problems, checked
from pskd.workbench.data.detection.scenes import Scenes
from pskd.workbench.data.reason import place

Read = Callable[[Path, str, Problems], tuple[list[Note], Sequence[str]]]
"""From the folder and the name of a part: what is said of its images, and the classes, if the part names them."""


@dataclass(frozen=True)
class Wanted:
    """What is asked for.

    Args:
        splits: the published splits that make up "train", "val" and "test".
        counts: how many images of each to make or to keep, drawn by the seed; None keeps all.
        root: the folder that holds the files.
        classes: by default all that the training annotations name.
        download: fetch what is missing.
        at_most: take fewer where there are not so many as ``counts`` say, instead of refusing.
        skip_bad: leave out what is wrong with the annotations and note it, instead of refusing.
        seed: of ``counts``, of all but the test images.
    """

    splits: Mapping[str, Sequence[str]]
    counts: Mapping[str, int | None]
    root: str | None = None
    classes: Sequence[str] = ()
    download: bool = False
    skip_bad: bool = False
    at_most: bool = False
    seed: int = 0


@dataclass(frozen=True)
class DetectionData:
    """Class names (a label is a position among them), splits, and what was left out, line by line."""

    classes: tuple[str, ...]
    train: Scenes
    val: Scenes | None
    test: Scenes
    notes: tuple[str, ...]


def from_notes(
    name: str, wanted: Wanted, read: Read, example: str, classes: Sequence[str] | None = None
) -> DetectionData:
    """The data set that ``read`` reads part by part; ``example`` shows how its splits are named.

    ``classes`` are those of a published data set, whatever was asked for.
    """
    root, splits = place(name, wanted.root), wanted.splits
    for split in ("train", "test"):
        if not splits[split]:
            raise PskdError(f"data.{split} is empty: name the splits of '{name}' to take, such as {example}")
    problems, known = Problems(wanted.skip_bad), classes or wanted.classes
    notes: dict[str, list[Note]] = {}
    for split, parts in splits.items():
        notes[split] = []
        for part in parts:
            more, categories = read(root, part, problems)
            notes[split] += more
            known = known or categories  # the first training part's
    known = known or sorted({label for note in notes["train"] for label, _, _ in note.objects})
    scenes = {split: checked(notes[split], known, root, problems) for split in notes}
    left_out = problems.settle()
    for split, count in wanted.counts.items():
        total = len(scenes[split])
        if count is not None and splits[split]:
            if count > total and not wanted.at_most:
                raise PskdError(f"data.{split}_images={count}: there are {total} in {', '.join(splits[split])}")
            seed = 0 if split == "test" else wanted.seed
            drawn = shuffled(torch.arange(total), seed=seed, epoch=0, stream=f"{split} images")[:count]
            scenes[split] = scenes[split].subset(drawn.sort().values)
    for split, parts in splits.items():
        if parts and bool(scenes[split].difficult.all()):
            raise PskdError(f"data.{split}: {', '.join(parts)} of '{root}' has no object to learn or to test")
    val = scenes["val"] if splits["val"] else None
    return DetectionData(tuple(known), scenes["train"], val, scenes["test"], tuple(left_out))
