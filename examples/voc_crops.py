"""Cut the objects out of VOC's images into class folders, for a classifier that shall become a detector's trunk.

    python examples/voc_crops.py VOC OUT --train 2012/train --test 2012/val
    pskd train folder data.root=OUT data.image_size=64 model=torchvision:resnet18 --out runs/crops
    pskd train detection/voc data.root=VOC 'data.train=[2012/train]' 'data.test=[2012/val]' model.backbone=runs/crops

VOC is the folder that holds VOCdevkit. Difficult objects and those with a side below --smallest pixels are left out;
each crop has a margin of a tenth of its box.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from PIL import Image

from pskd.workbench.data import detection
from pskd.workbench.data.detection import SceneSplit

MARGIN = 0.1


def cut(scenes: SceneSplit, classes: tuple[str, ...], out: Path, smallest: int) -> int:
    """Write every object that is wanted to OUT/CLASS/IMAGE-NUMBER.png; returns how many."""
    assert isinstance(scenes.source, Path)
    for name in classes:
        (out / name).mkdir(parents=True, exist_ok=True)
    sides = scenes.boxes[:, 2:] - scenes.boxes[:, :2]
    wanted = (~scenes.difficult & (sides.min(1).values >= smallest)).tolist()
    margin = MARGIN * sides
    boxes = torch.cat((scenes.boxes[:, :2] - margin, scenes.boxes[:, 2:] + margin), 1).round().int().tolist()
    for number, name in enumerate(scenes.names):
        with Image.open(scenes.source / name) as image:
            for item in range(*scenes.offsets[number : number + 2].tolist()):
                if wanted[item]:
                    left, top, right, bottom = boxes[item]
                    box = max(0, left), max(0, top), min(image.width, right), min(image.height, bottom)
                    folder = out / classes[scenes.labels[item]]
                    image.crop(box).save(folder / f"{Path(name).stem}-{item - int(scenes.offsets[number])}.png")
    return sum(wanted)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("voc", help="the folder that holds VOCdevkit")
    parser.add_argument("out", type=Path, help="the folder to write train and test to")
    parser.add_argument("--train", nargs="+", default=["2007/trainval", "2012/trainval"])
    parser.add_argument("--test", nargs="+", default=["2007/test"])
    parser.add_argument("--smallest", type=int, default=16)
    given = parser.parse_args()
    splits = {"train": given.train, "val": (), "test": given.test}
    data = detection.load("voc", root=given.voc, splits=splits, counts=dict.fromkeys(splits))
    for split, scenes in (("train", data.train), ("test", data.test)):
        count = cut(scenes, data.classes, given.out / split, given.smallest)
        print(f"{split}: {count} objects of {len(scenes)} images")


if __name__ == "__main__":
    main()
