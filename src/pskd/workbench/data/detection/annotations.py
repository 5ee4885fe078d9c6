"""From annotation files to scenes: every object is checked, and what is wrong is reported with the file's name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image
from torch.nn import functional as F

from pskd.errors import PskdError
from pskd.random import shuffled
from pskd.workbench.data.detection.scenes import SceneSplit
from pskd.workbench.data.refusing import reason, require_root
from pskd.workbench.reading import check_file

SLACK = 1.0  # pixels that a box may stick out, to be cut off: some tools count pixels from 0, others from 1
LARGEST_SIDE = 2**24  # pixels of an image's side; float32 counts them exactly


@dataclass(frozen=True)
class Wanted:
    """What is asked for.

    Args:
        splits: the published splits that make up "train", "val" and "test".
        counts: how many images of each to make or to keep, drawn by the seed; None keeps all.
        root: the folder that holds the files.
        classes: by default all that the training annotations name.
        download: fetch what is missing.
        at_most: ``counts`` are upper bounds, so data that has fewer images is not refused.
        skip_bad: leave out what is wrong with the annotations and note it, instead of refusing.
        seed: of ``counts``, except that of the test images.
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
    train: SceneSplit
    val: SceneSplit | None
    test: SceneSplit
    notes: tuple[str, ...]


class Note(NamedTuple):
    """What an annotation file says about one image."""

    file: str  # the annotation's, for messages
    image: str  # relative to the data set's folder
    size: tuple[int, int] | None  # height and width; None: that of the image file
    objects: list[tuple[str, tuple[float, float, float, float], bool]]  # class, box as edges, difficult


@dataclass
class Problems:
    """What is wrong with the annotations: it is refused, or left out and reported."""

    skip: bool
    lines: list[str] = field(default_factory=list)

    def add(self, problem: str) -> None:
        self.lines.append(problem)

    def settle(self) -> list[str]:
        """Refuse, or give the lines for the log."""
        if not self.lines:
            return []
        if not self.skip:
            more = f" (and {len(self.lines) - 1} more)" if self.lines[1:] else ""
            raise PskdError(f"{self.lines[0]}{more}: correct it, or leave such out with data.on_bad=skip")
        return [f"left out {len(self.lines)} annotations that are wrong (data.on_bad=skip)", *self.lines]


Read = Callable[[Path, str, Problems], tuple[list[Note], Sequence[str]]]
"""From the root and the name of a published split: notes on its images, and its classes, if the split names them."""


def from_notes(
    name: str, wanted: Wanted, read: Read, example: str, classes: Sequence[str] | None = None
) -> DetectionData:
    """The data set whose published splits ``read`` reads; ``example`` shows how these are named.

    ``classes`` are those of a published data set, whatever was asked for.
    """
    root, splits = require_root(name, wanted.root), wanted.splits
    for split in ("train", "test"):
        if not splits[split]:
            raise PskdError(f"data.{split} is empty: name the splits of '{name}' to take, such as {example}")
    problems, known = Problems(wanted.skip_bad), classes or wanted.classes
    notes: dict[str, list[Note]] = {split: [] for split in splits}
    for split, parts in splits.items():
        for part in parts:
            more, categories = read(root, part, problems)
            notes[split] += more
            known = known or categories  # the first training part's
    known = known or sorted({label for note in notes["train"] for label, _, _ in note.objects})
    scenes = {split: build_scenes(own, known, root, problems) for split, own in notes.items()}
    left_out = problems.settle()
    for split, parts in splits.items():
        total, count = len(scenes[split]), wanted.counts.get(split)
        if parts and count is not None:
            if count > total and not wanted.at_most:
                raise PskdError(f"data.{split}_images={count}: there are {total} in {', '.join(parts)}")
            seed = 0 if split == "test" else wanted.seed
            order = shuffled(torch.arange(total), seed=seed, epoch=0, stream=f"{split} images")
            scenes[split] = scenes[split].subset(order[:count].sort().values)
    for split, parts in splits.items():
        if parts and bool(scenes[split].difficult.all()):
            raise PskdError(f"data.{split}: {', '.join(parts)} of '{root}' has no object to learn or to test")
    val = scenes["val"] if splits["val"] else None
    return DetectionData(tuple(known), scenes["train"], val, scenes["test"], tuple(left_out))


def build_scenes(notes: Sequence[Note], classes: Sequence[str], root: Path, problems: Problems) -> SceneSplit:
    """The images that can be read, with their objects that are right."""
    numbers = {name: number for number, name in enumerate(classes)}
    images = [(note, size) for note in notes if (size := _image_size(note, root, problems)) is not None]
    sizes = torch.tensor([size for _, size in images], dtype=torch.int64).view(-1, 2)
    listed = [(place, item) for place, (note, _) in enumerate(images) for item in note.objects]
    image = torch.tensor([place for place, _ in listed], dtype=torch.int64)
    boxes = torch.tensor([box for _, (_, box, _) in listed], dtype=torch.float32).view(-1, 4)
    labels = torch.tensor([numbers.get(name, -1) for _, (name, _, _) in listed], dtype=torch.int64)
    difficult = torch.tensor([difficult for _, (_, _, difficult) in listed], dtype=torch.bool)
    limits = sizes[image].flip(1)  # (M, 2): x, y
    outside = (boxes[:, :2] < -SLACK).any(1) | (boxes[:, 2:] > limits + SLACK).any(1) | ~boxes.isfinite().all(1)
    boxes[:, :2].clamp_(min=0)
    boxes[:, 2:] = torch.minimum(boxes[:, 2:], limits.float())
    empty = (boxes[:, 2:] <= boxes[:, :2]).any(1)
    mistakes = {
        "its class is unknown": labels < 0,
        "it is outside of the image": outside,
        "the box has no area": empty & ~outside,
    }
    for mistake, wrong in mistakes.items():
        for position in wrong.nonzero().flatten().tolist():
            place, (name, box, _) = listed[position]
            edges = ", ".join(f"{edge:g}" for edge in box)
            problems.add(f"{images[place][0].file}: object '{name}' at ({edges}): {mistake}")
    right = ~(outside | empty | (labels < 0))
    return SceneSplit(
        names=tuple(note.image for note, _ in images),
        source=root,
        channels=3,
        sizes=sizes,
        offsets=F.pad(image[right].bincount(minlength=len(images)).cumsum(0), (1, 0)),
        boxes=boxes[right],
        labels=labels[right],
        difficult=difficult[right],
    )


def read_size(height: object, width: object) -> tuple[int, int] | None:
    """The size of an image in its annotation; None if it is not there. One that no image has is refused."""
    sides = int(float(height or 0)), int(float(width or 0))  # type: ignore[arg-type]
    if max(sides) > LARGEST_SIDE:
        raise ValueError(f"a side of {max(sides):,} pixels, the most allowed are {LARGEST_SIDE:,}")
    return sides if min(sides) > 0 else None


def _image_size(note: Note, root: Path, problems: Problems) -> tuple[int, int] | None:
    """The image's height and width; None if it cannot be read."""
    path = root / note.image
    try:
        check_file(path)
        if note.size is not None:
            return note.size
        with Image.open(path) as image:
            return image.height, image.width
    except (PskdError, OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        problems.add(f"{note.file}: its image '{path}' cannot be read ({reason(error)})")
        return None
