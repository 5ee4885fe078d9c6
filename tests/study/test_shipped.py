"""Every shipped study, cut to the smallest data and one or two epochs, ends with its table and figures."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from helpers import pskd
from PIL import Image

from pskd.workbench import recipes
from pskd.workbench.data.text.numbers import number_words
from pskd.workbench.report.figures import make_figures
from pskd.workbench.report.samples import side_by_side
from pskd.workbench.study.cells import Study
from pskd.workbench.study.results import collect

DIGITS = (
    "data=digits",
    "data.num_classes=4",
    "data.per_class=5",
    "scale=laptop",
    "epochs=2",
    "batch_size=16",
    "train.history=true",
)
SMALL_NET = ("model=resnet8", "model.width=4")
TEXT = ("epochs=1", "data.vocabulary=64", "model.layers=1", "model.width=16", "model.inner=16", "eval.beam=1")
WORDNET = ("n01440764", "n01443537")
IWSLT_TESTS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012", "TED.tst2013")


def cut(name: str, root: Path) -> list[str]:
    """The words that make the study ``name`` small."""
    imagenet = [f"data.root={root / 'imagenet'}", "data.num_classes=2", "data.per_class=4", "data.workers=0"]
    imagenet += ["scale=laptop", "epochs=1", "batch_size=4"]
    if name in ("studies/table4", "studies/random_search"):
        return [*imagenet, "data.image_size=32"]
    if name == "studies/table5":
        trunk = [f"imagenet/resnet152:{word}" for word in (*imagenet, "data.image_size=32")]
        return [f"data.root={root}", "scale=laptop", "epochs=1", "data.workers=0", *trunk]
    if name == "studies/voc_small":
        years = ("detection/voc:data.train=[2012/trainval]", "detection/voc:data.test=[2007/test]")
        trunk = [f"folder:data.root={root / 'imagenet'}", "folder:epochs=1", "folder:data.workers=0"]
        return [f"data.root={root}", "epochs=1", "data.workers=0", *years, *trunk]
    if name in ("studies/table6", "studies/multi30k_small", "studies/multi30k_overfit"):
        return [f"data.root={root / 'text'}", *TEXT]
    if name == "studies/detection_digits":
        scenes = [f"detection/digits:{word}" for word in ("data.train_images=8", "data.test_images=4")]
        return [*scenes, "epochs=1", "digits:data.per_class=2", "digits:epochs=1"]
    fashion = [f"data.root={root / 'fashion'}", "model.width=4", "seed=0,1"]
    if name == "studies/when_it_helps":
        return [*fashion, "data.per_class=10,30", "epochs=10,30", "method.alpha=0.0,0.8,auto"]
    if name == "studies/cifar100_long":
        return [*fashion, "data=fashion_mnist", "data.per_class=5", "epochs=2"]
    if name == "studies/when_it_helps_cifar100":
        return [*fashion, "data=fashion_mnist", "data.per_class=30", "epochs=10,30", "method.alpha=0.0,0.8,auto"]
    if name in ("studies/born_again", "studies/snapshot_distillation"):
        return [*fashion, "data.per_class=5", "epochs=4"]
    if name == "studies/better_memory":
        return [*fashion, "data.per_class=30", "data.val_fraction=0.8", "epochs=2"]
    if name == "studies/headline":
        other = ("data=fashion_mnist", "data.num_classes=10")
        short = ('setting="Fashion-MNIST, 10 epochs","CIFAR-100, 40% wrong labels"', "data.per_class=5", "epochs=2")
        return [*fashion, *short, *(f"cifar100/preact_resnet18:{word}" for word in other)]
    if name == "studies/label_noise":
        return [*fashion, "data=Fashion-MNIST", "data.per_class=5", "epochs=2", "data.noise=0.4"]
    if name == "studies/self_distillation":
        return [*fashion, "data=Fashion-MNIST", "data.per_class=5", "epochs=2"]
    if name == "studies/hard_examples":
        return [*DIGITS, "epochs=3"]  # a past from the second on, and a line from two points
    return [*DIGITS, *(SMALL_NET if name == "studies/digits" else ())]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smallest ImageNet, Fashion-MNIST, VOC, Multi30k and IWSLT, each in its published layout."""
    folder = tmp_path_factory.mktemp("data")
    images(folder / "imagenet")
    arrays(folder / "fashion")
    scenes(folder / "VOCdevkit")
    sentences(folder / "text")
    return folder


def images(folder: Path) -> None:
    draw = np.random.default_rng(0)
    for place in (folder / split / name for split in ("train", "val", "test") for name in WORDNET):
        place.mkdir(parents=True)
        for number in range(4):
            Image.fromarray(draw.integers(0, 255, (48, 48, 3), dtype=np.uint8)).save(place / f"{number}.png")


def arrays(folder: Path) -> None:
    folder.mkdir()
    draw = np.random.default_rng(0)
    for part, count in (("train", 300), ("t10k", 40)):
        labels = (np.arange(count) % 10).astype(np.uint8)
        pixels = draw.integers(0, 128, (count, 28, 28), dtype=np.uint8) + 12 * labels[:, None, None]
        for what, values in (("images-idx3", pixels), ("labels-idx1", labels)):
            header = bytes((0, 0, 8, values.ndim)) + np.array(values.shape, ">i4").tobytes()
            (folder / f"{part}-{what}-ubyte").write_bytes(header + values.tobytes())


def scenes(folder: Path) -> None:
    box = "<bndbox><xmin>11</xmin><ymin>6</ymin><xmax>60</xmax><ymax>50</ymax></bndbox>"
    for year, splits in (("VOC2007", ("trainval", "test")), ("VOC2012", ("trainval", "train", "val"))):
        for part in ("Annotations", "JPEGImages", "ImageSets/Main"):
            (folder / year / part).mkdir(parents=True)
        for name in ("a", "b", "c", "d"):
            Image.new("RGB", (80, 60), "white").save(folder / year / "JPEGImages" / f"{name}.jpg")
            note = f"<annotation><object><name>cat</name><difficult>0</difficult>{box}</object></annotation>"
            (folder / year / "Annotations" / f"{name}.xml").write_text(note)
        for split in splits:
            (folder / year / "ImageSets" / "Main" / f"{split}.txt").write_text("a\nb\nc\nd\n")


def sentences(folder: Path) -> None:
    """Number words, in the files of Multi30k and of IWSLT."""
    folder.mkdir()
    numbers = random.Random(0).sample(range(1000), 140)
    stems = {"train": numbers[:100], "val": numbers[100:104], "test_2016_flickr": numbers[104:108]}
    for language in ("de", "en"):
        lines = {stem: [number_words(number, language) for number in chosen] for stem, chosen in stems.items()}
        for stem, text in lines.items():
            (folder / f"{stem}.{language}").write_text("\n".join(text) + "\n")
        (folder / f"train.tags.de-en.{language}").write_text("\n".join(lines["train"]) + "\n")
        segments = "".join(f'<seg id="{number}">{line}</seg>\n' for number, line in enumerate(lines["val"], 1))
        for name in IWSLT_TESTS:
            (folder / f"IWSLT.{name}.de-en.{language}.xml").write_text(segments)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", recipes.study_names())
def test_it_ends_with_its_table_and_figures(
    name: str, root: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "study"
    code, _, errors = pskd(capfd, "study", "run", name, "--out", str(out), "--workers", "1", *cut(name, root))
    assert not errors
    assert code == 0
    assert (out / "report.html").stat().st_size > 10_000
    collections = collect([out])  # one for each data set
    assert sum(len(each.runs) for each in collections) == sum(
        bool(cell.labels) for cell in Study.load(out).cells().values()
    )
    for collection in collections:
        assert not collection.unfinished
        assert set(collection.columns) == set(collection.show.columns or collection.columns)
        shown = {figure.kind for figure in make_figures(collection)}
        if any(side_by_side(rows) is not None for rows in collection.frames.values()):
            shown.add("samples")
        assert shown >= set(collection.show.first)
