"""PASCAL VOC's folders through torchvision, and any folder in their layout."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from pskd.errors import RECOVERABLE, PskdError
from pskd.workbench import registry
from pskd.workbench.data.detection.annotations import DetectionData, Note, Problems, Wanted, from_notes, read_size
from pskd.workbench.data.refusing import reason, refusing
from pskd.workbench.reading import check_file, read_text

LARGEST_FILE = 10_000_000  # bytes of an annotation
# fmt: off
VOC_CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog",
    "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)
# fmt: on


@registry.scenes.register("voc", "PASCAL VOC")
def load_voc(wanted: Wanted, /) -> DetectionData:
    """PASCAL VOC as published: a split such as "2007/trainval" of the folder that holds VOCdevkit."""
    from torchvision.datasets import VOCDetection

    def read(root: Path, split: str, problems: Problems) -> tuple[list[Note], Sequence[str]]:
        year, _, image_set = split.partition("/")
        advice = (
            "data.root=... names the folder that holds VOCdevkit, and a split is written like 2007/trainval"
            " (data.download=true fetches it)"
        )
        with refusing(f"no VOC split '{split}' in '{root}'", advice, RuntimeError, ValueError, OSError):
            published = VOCDetection(root, year=year, image_set=image_set, download=wanted.download)
        return _notes(root, zip(published.annotations, published.images, strict=True), problems), ()

    return from_notes("voc", wanted, read, "[2007/trainval, 2012/trainval]", VOC_CLASSES)


@registry.scenes.register("voc_folder")
def load_voc_folder(wanted: Wanted, /) -> DetectionData:
    """A user's own images in VOC's layout."""
    return from_notes("voc_folder", wanted, _read_folder, "[train]")


def _read_folder(root: Path, split: str, problems: Problems) -> tuple[list[Note], Sequence[str]]:
    """``root``/ImageSets/Main/SPLIT.txt lists the names of files in ``root``/Annotations and ``root``/JPEGImages."""
    listing, images = root / "ImageSets" / "Main" / f"{split}.txt", root / "JPEGImages"
    advice = f"data.root=... names a folder with ImageSets/Main/{split}.txt, Annotations and JPEGImages"
    with refusing(f"cannot read '{listing}'", advice, PskdError):
        names = [line.split()[0] for line in read_text(listing, 2**30).splitlines() if line.strip()]
    with refusing(None, advice, OSError):
        files = {os.path.splitext(name)[0]: name for name in sorted(os.listdir(images))}
    pairs = ((root / "Annotations" / f"{name}.xml", images / files.get(name, f"{name}.jpg")) for name in names)
    return _notes(root, pairs, problems), ()


def _notes(root: Path, files: Iterable[tuple[Any, Any]], problems: Problems) -> list[Note]:
    notes = []
    for annotation, image in files:
        try:
            notes.append(_read(str(annotation), os.path.relpath(image, root)))
        except (OSError, ElementTree.ParseError, *RECOVERABLE, RecursionError) as error:
            problems.add(f"{annotation}: not an annotation in VOC's XML ({reason(error)})")
    return notes


def _read(file: str, image: str) -> Note:
    from torchvision.datasets import VOCDetection

    check_file(file, LARGEST_FILE)
    tree = VOCDetection.parse_voc_xml(ElementTree.parse(file).getroot())["annotation"]
    size = tree.get("size") or {}
    objects = []
    for item in tree["object"]:
        left, top, right, bottom = (float(item["bndbox"][edge]) for edge in ("xmin", "ymin", "xmax", "ymax"))
        # VOC names the first and the last pixel, from 1 on; we name edges.
        objects.append((item["name"], (left - 1, top - 1, right, bottom), int(item.get("difficult", 0)) == 1))
    return Note(file, image, read_size(size.get("height"), size.get("width")), objects)
