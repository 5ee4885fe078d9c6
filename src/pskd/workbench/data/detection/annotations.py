"""From annotation files to scenes: every object is checked, and what is wrong is said with the file's name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image
from torch.nn import functional as F

from pskd.errors import PskdError
from pskd.workbench.data.detection.scenes import Scenes
from pskd.workbench.data.reason import reason
from pskd.workbench.reading import check_file

SLACK = 1.0  # pixels that a box may stick out, to be cut off: some tools count pixels from 0, others from 1


LARGEST_SIDE = 2**24  # pixels of an image's side; float32 counts them exactly


def check_side(*sides: int) -> None:
    """Refuse a size that no image has."""
    if max(sides) > LARGEST_SIDE:
        raise ValueError(f"a side of {max(sides):,} pixels, the most allowed are {LARGEST_SIDE:,}")


class Note(NamedTuple):
    """What an annotation file says about one image."""

    file: str  # the annotation's, for messages
    image: str  # relative to the data set's folder
    size: tuple[int, int] | None  # height and width; None: as the image file says
    objects: list[tuple[str, tuple[float, float, float, float], bool]]  # class, box as edges, difficult


@dataclass
class Problems:
    """What is wrong with the annotations: the end of the run, or left out and reported."""

    skip: bool
    found: list[str] = field(default_factory=list)

    def add(self, problem: str) -> None:
        self.found.append(problem)

    def settle(self) -> list[str]:
        """Refuse, or give the lines for the log."""
        if not self.found:
            return []
        if not self.skip:
            more = f" (and {len(self.found) - 1} more)" if self.found[1:] else ""
            raise PskdError(f"{self.found[0]}{more}: correct it, or leave such out with data.on_bad=skip")
        return [f"left out {len(self.found)} annotations that are wrong (data.on_bad=skip)", *self.found]


def checked(notes: Sequence[Note], classes: Sequence[str], root: Path, problems: Problems) -> Scenes:
    """The images that are there, with their objects that are right."""
    numbers = {name: number for number, name in enumerate(classes)}
    known = [(note, size) for note in notes if (size := _size(note, root, problems)) is not None]
    sizes = torch.tensor([size for _, size in known], dtype=torch.int64).view(-1, 2)
    listed = [(image, item) for image, (note, _) in enumerate(known) for item in note.objects]
    image = torch.tensor([number for number, _ in listed], dtype=torch.int64)
    boxes = torch.tensor([box for _, (_, box, _) in listed], dtype=torch.float32).view(-1, 4)
    labels = torch.tensor([numbers.get(name, -1) for _, (name, _, _) in listed], dtype=torch.int64)
    limits = sizes[image].flip(1)  # (M, 2): x, y
    outside = (boxes[:, :2] < -SLACK).any(1) | (boxes[:, 2:] > limits + SLACK).any(1) | ~boxes.isfinite().all(1)
    boxes[:, :2].clamp_(min=0)
    boxes[:, 2:] = torch.minimum(boxes[:, 2:], limits.float())
    empty = (boxes[:, 2:] <= boxes[:, :2]).any(1)
    judged = {
        "its class is unknown": labels < 0,
        "it is outside of the image": outside,
        "the box has no area": empty & ~outside,
    }
    for what, wrong in judged.items():
        for position in wrong.nonzero().flatten().tolist():
            number, (name, box, _) = listed[position]
            place = ", ".join(f"{edge:g}" for edge in box)
            problems.add(f"{known[number][0].file}: object '{name}' at ({place}): {what}")
    right = ~(outside | empty | (labels < 0))
    return Scenes(
        names=tuple(note.image for note, _ in known),
        source=root,
        channels=3,
        sizes=sizes,
        offsets=F.pad(image[right].bincount(minlength=len(known)).cumsum(0), (1, 0)),
        boxes=boxes[right],
        labels=labels[right],
        difficult=torch.tensor([difficult for _, (_, _, difficult) in listed], dtype=torch.bool)[right],
    )


def _size(note: Note, root: Path, problems: Problems) -> tuple[int, int] | None:
    """The image's height and width; None if it is not there."""
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
