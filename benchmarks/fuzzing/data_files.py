"""Cases of data: images, arrays, text and annotations that are odd, damaged or no such thing."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import shutil
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fuzzing.case import TINY_SCENES, TINY_TEXT, Case, Templates
from fuzzing.values import changed_tree, damaged

FOLDER = ("data.root=data", "data.image_size=8", "data.workers=0", "model=resnet8", "model.width=2", "epochs=1")
NAMES = [
    "a.png",
    "a.png",
    "a\nb.png",
    "\udcff.png",
    "x" * 240 + ".png",
    "<b>.png",
    "-a.png",
    ".png",
    "a.PNG",
    "a.jpg",
    "$\\frac{$.png",
]
ENDLESS = "x" * 400_000


def _png(side: int = 8) -> bytes:
    content = io.BytesIO()
    Image.new("RGB", (side, side), (200, 10, 60)).save(content, "png")
    return content.getvalue()


def _claiming(width: int, height: int) -> bytes:
    """A PNG whose header claims a size."""
    content = bytearray(_png())
    content[16:24] = struct.pack(">II", width, height)
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    return bytes(content)


def odd_image(draw: random.Random, place: Path) -> None:
    """Put something that may be an image at a place."""
    kind = draw.randrange(10)
    if kind == 0:
        os.mkfifo(place)
    elif kind == 1:
        place.symlink_to(
            draw.choice(["/dev/zero", "/dev/null", "/dev/tty", "/proc/self/mem", place.name, "/etc/passwd"])
        )
    elif kind == 2:
        place.mkdir()
    elif kind == 3:
        place.write_bytes(
            _claiming(*draw.choice([(2**31 - 1, 2**31 - 1), (100_000, 100_000), (1, 2**30), (0, 0), (12_000, 12_000)]))
        )
    elif kind == 4:
        with place.open("wb") as file:
            file.truncate(10**11)
    elif kind == 5:
        mode = draw.choice(["1", "L", "LA", "P", "RGBA", "CMYK", "I", "F", "I;16"])
        side = draw.choice([1, 7, 8])
        Image.new(mode, (side, draw.choice([1, 500]))).save(place, "tiff")
    elif kind == 6:
        place.write_bytes(
            draw.choice([b"", b"GIF89a", b"%!PS-Adobe-3.0 EPSF\nshowpage", b"<svg/>", b"P6 9999999 9999999 255\n"])
        )
    else:
        place.write_bytes(damaged(draw, _png()))


def image_folders(draw: random.Random, here: Path, templates: Templates) -> Case:
    """Training on, evaluating on and predicting images of class folders."""
    for split in ("train", "test"):
        for name in ("cat", "dog"):
            (here / "data" / split / name).mkdir(parents=True)
            for number in range(2):
                (here / "data" / split / name / f"{number}.png").write_bytes(_png())
    place = here / "data" / draw.choice(["train", "test"]) / "cat"
    locked = False
    if draw.random() < 0.25:
        locked = _odd_tree(draw, here / "data", place)
    else:
        odd_image(draw, place / draw.choice(NAMES))
        image = next(file for file in place.iterdir() if file.name not in ("0.png", "1.png"))
        if draw.random() < 0.4:
            shutil.copytree(templates.finished, here / "run")
            return Case(["predict", "run", f"{place.relative_to(here)}/{image.name}", *draw.choice([[], ["--json"]])])
    return Case(["train", "folder", *FOLDER, "--out", "run"], locked=locked)


def _odd_tree(draw: random.Random, root: Path, place: Path) -> bool:
    kind = draw.randrange(6)
    if kind == 0:
        (place / "loop").symlink_to("../..")
    elif kind == 1:
        place.rename(place.with_name(draw.choice(["c\nt", "\udcff", "$\\frac{$", "<b>", "x" * 250, "\x1b[31m"])))
    elif kind == 2:
        shutil.rmtree(place)
        place.write_bytes(_png())
    elif kind == 3:
        draw.choice([place, place.parent, place / "0.png"]).chmod(draw.choice([0, 0o100, 0o400]))
        return True
    elif kind == 4:
        shutil.rmtree(draw.choice([place, place.parent, root]))
    else:
        deep = place
        for _ in range(40):
            deep = deep / ("d" * 60)
            try:
                deep.mkdir()
            except OSError:
                break
    return False


def arrays(draw: random.Random, here: Path, templates: Templates) -> Case:
    """An .npz file of images and labels."""
    content: dict[str, Any] = {}
    for split, count in (("train", 6), ("test", 4)):
        content[f"{split}_images"] = np.zeros((count, 8, 8, 3), np.uint8)
        content[f"{split}_labels"] = np.arange(count) % 2
    name = draw.choice(list(content))
    old = content.pop(name)
    new: list[Any] = [
        *(None, old[:0], old[0], old[..., None], old.astype(float), old.astype(np.uint64) + np.uint64(2**63)),
        -1 - old.astype(int),
    ]
    new += [
        *(old.astype(int) + 10**9, old.astype(str), np.array(["x"]), np.full(old.shape, np.nan), old.astype(bool)),
        old.astype(object),
    ]
    new += [
        np.zeros((*old.shape[:1], 1, 1), np.uint8),
        np.zeros((2**20, 1, 1), np.uint8),
        np.arange(len(old)) * 50_000_000,
    ]
    if (changed := draw.choice(new)) is not None:
        content[name] = changed
    file = io.BytesIO()
    np.savez(file, allow_pickle=True, **content)
    data = file.getvalue() if draw.random() < 0.7 else damaged(draw, file.getvalue())
    if draw.random() < 0.15:
        data = _lying_npz(draw)
    (here / "data").write_bytes(data)
    return Case(["train", "folder", *FOLDER[3:], "data=npz", "data.root=data", "--out", "run"])


def _lying_npz(draw: random.Random) -> bytes:
    shape = draw.choice([(10**12, 8, 8), (2**62,), (-1, 3), (10**5, 10**5)])
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}".encode()
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("train_images", "train_labels", "test_images", "test_labels"):
            archive.writestr(
                f"{name}.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + b"\0" * 1000
            )
    return content.getvalue()


def texts(draw: random.Random, here: Path, templates: Templates) -> Case:
    """Line-aligned text files, and text to translate."""
    if draw.random() < 0.3:
        shutil.copytree(templates.text, here / "run")
        text = draw.choice(
            [ENDLESS[:100_000], "", " ", "\x1b[31m", "\udcff", "💥" * 50, "a\nb", "eins " * 3000, "\u202e", "<b>"]
        )
        if draw.random() < 0.5:
            return Case(["predict", "run", "--text", text])
        (here / "in.txt").write_bytes(
            damaged(draw, b"eins\nzwei\n") if draw.random() < 0.5 else text.encode("utf-8", "surrogateescape")
        )
        return Case(["predict", "run", "in.txt"])
    folder = here / "data"
    folder.mkdir()
    for name in ("train.de", "train.en", "test.de", "test.en"):
        (folder / name).write_text("eins zwei\ndrei\nvier fünf sechs\n" * 5)
    file = folder / draw.choice(["train.de", "train.en", "test.de"])
    kind = draw.randrange(8)
    if kind == 0:
        for each in folder.iterdir():
            each.write_text(f"{ENDLESS}\n")
    elif kind == 1:
        file.unlink()
        os.mkfifo(file)
    elif kind == 2:
        file.unlink()
        packed = gzip.compress(b"a\n" * draw.choice([15, 10**7]))
        file.with_name(f"{file.name}.gz").write_bytes(packed if draw.random() < 0.5 else damaged(draw, packed))
    elif kind == 3:
        file.unlink()
        file.symlink_to(draw.choice(["/dev/zero", "/proc/self/mem", file.name]))
    elif kind == 4:
        os.truncate(file, 10**11)
    elif kind == 5:
        file.write_text(
            draw.choice(["\u2028\n" * 15, "\x00\n" * 15, "💥\n" * 15, "a\r\n" * 15, "\x1b[31m\n" * 15, "\n" * 15])
        )
    else:
        file.write_bytes(damaged(draw, file.read_bytes()))
    bad = draw.choice([[], ["data.on_bad=skip"]])
    return Case(["train", "translation/numbers", "data=files", "data.root=data", *TINY_TEXT, *bad, "--out", "run"])


def _coco(names: list[str]) -> dict[str, Any]:
    return {
        "categories": [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}],
        "images": [{"id": n, "file_name": name, "width": 40, "height": 40} for n, name in enumerate(names)],
        "annotations": [
            {"id": n, "image_id": n, "category_id": 1, "bbox": [4, 4, 20, 20], "iscrowd": 0} for n in range(len(names))
        ],
    }


def _voc(draw: random.Random) -> str:
    odd = ["", "x", "-1", "0", "1e308", "inf", "nan", "9" * 400, "99999999999", "1.5", "<a/>", "&lol;"]
    parts = {
        "width": "40",
        "height": "40",
        "xmin": "4",
        "ymin": "4",
        "xmax": "24",
        "ymax": "24",
        "name": "cat",
        "difficult": "0",
    }
    parts[draw.choice(list(parts))] = draw.choice(odd)
    laughs = "".join(f'<!ENTITY lol{n} "{f"&lol{n - 1};" * 10}">' for n in range(1, 10))
    entities = f'<!DOCTYPE x [<!ENTITY lol0 "ha">{laughs}<!ENTITY lol "&lol9;">]>' if draw.random() < 0.3 else ""
    box = "".join(f"<{edge}>{parts[edge]}</{edge}>" for edge in ("xmin", "ymin", "xmax", "ymax"))
    return (
        f"{entities}<annotation><size><width>{parts['width']}</width><height>{parts['height']}</height></size>"
        f"<object><name>{parts['name']}</name><difficult>{parts['difficult']}</difficult><bndbox>{box}</bndbox></object></annotation>"
    )


def annotations(draw: random.Random, here: Path, templates: Templates) -> Case:
    """Images with boxes in COCO's JSON or VOC's XML."""
    images = here / "data" / "JPEGImages"
    images.mkdir(parents=True)
    for name in ("a.png", "b.png"):
        (images / name).write_bytes(_png(40))
    if draw.random() < 0.15:
        (images / "a.png").unlink()
        odd_image(draw, images / "a.png")
    words = ["data=voc_folder", "data.train=[s]", "data.test=[s]", "data.val=[s]"]
    if draw.random() < 0.5:
        tree = changed_tree(draw, _coco(["a.png", "b.png"]))
        text = (
            json.dumps(tree)
            if draw.random() < 0.85
            else draw.choice(["[" * 100_000, "{", "", '{"images": ' + "9" * 5000 + "}"])
        )
        (here / "data" / "s.json").write_text(text)
        split = "[s.json:JPEGImages]"
        words = ["data=coco", f"data.train={split}", f"data.test={split}", f"data.val={split}"]
    else:
        (here / "data" / "ImageSets" / "Main").mkdir(parents=True)
        (here / "data" / "Annotations").mkdir()
        (here / "data" / "ImageSets" / "Main" / "s.txt").write_text(
            draw.choice(["a\nb\n", "a\nb\n", "a\n../../b\n", "", "\x00", "a\na\n"])
        )
        for name in ("a", "b"):
            (here / "data" / "Annotations" / f"{name}.xml").write_text(
                _voc(draw) if draw.random() < 0.9 else "<a>" * 5000
            )
    bad = draw.choice([[], ["data.on_bad=skip"]])
    return Case(["train", "detection/digits", *TINY_SCENES, *words, "data.root=data", *bad, "--out", "run"])
