"""Images with boxes: made, read, checked, and moved together."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from pskd.errors import PskdError
from pskd.workbench.augment.boxes import BoxAugment, Resize, scale_boxes
from pskd.workbench.data import detection
from pskd.workbench.data.detection import DetectionData, SceneSplit
from pskd.workbench.data.detection.digits import CANVAS, digit_scenes
from pskd.workbench.data.digits import load_digits

Item = tuple[str, tuple[float, float, float, float], int]
CAT: Item = ("cat", (11, 6, 30, 25), 0)  # as VOC writes it: the pixels 11 to 30 and 6 to 25, counted from 1
DOG: Item = ("dog", (1, 1, 40, 30), 1)


def write_voc(folder: Path, images: dict[str, list[Item]], *, suffix: str = ".jpg") -> None:
    """Images of 40 x 30 pixels with annotations in VOC's XML."""
    for part in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    for name, objects in images.items():
        Image.new("RGB", (40, 30), "white").save(folder / "JPEGImages" / f"{name}{suffix}")
        items = "".join(
            f"<object><name>{label}</name><difficult>{difficult}</difficult><bndbox><xmin>{box[0]}</xmin>"
            f"<ymin>{box[1]}</ymin><xmax>{box[2]}</xmax><ymax>{box[3]}</ymax></bndbox></object>"
            for label, box, difficult in objects
        )
        size = "<size><width>40</width><height>30</height><depth>3</depth></size>"
        (folder / "Annotations" / f"{name}.xml").write_text(f"<annotation>{size}{items}</annotation>")


def write_split(folder: Path, split: str, *names: str) -> None:
    (folder / "ImageSets" / "Main" / f"{split}.txt").write_text("\n".join(names) + "\n")


def load(name: str, root: Path, train: list[str], test: list[str], **options: Any) -> DetectionData:
    counts = {split: options.pop(f"{split}_images", None) for split in ("train", "val", "test")}
    splits = {"train": train, "val": options.pop("val", []), "test": test}
    return detection.load(name, root=str(root), splits=splits, counts=counts, **options)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    write_voc(tmp_path, {"a": [CAT, DOG], "b": []}, suffix=".png")
    write_split(tmp_path, "train", "a", "b")
    write_split(tmp_path, "test", "a")
    return tmp_path


def test_voc_years_are_mixed(tmp_path: Path) -> None:
    for year, name in (("2007", "000001"), ("2012", "2008_000002")):
        folder = tmp_path / "VOCdevkit" / f"VOC{year}"
        write_voc(folder, {name: [CAT, DOG]})
        for split in ("trainval", "test") if year == "2007" else ("trainval",):
            write_split(folder, split, name)
    data = load("voc", tmp_path, ["2007/trainval", "2012/trainval"], ["2007/test"])
    assert len(data.classes) == 20
    assert len(data.train) == 2
    assert data.train.names[1].endswith("VOC2012/JPEGImages/2008_000002.jpg")
    assert data.train.boxes.tolist()[:2] == [[10, 5, 30, 25], [0, 0, 40, 30]]  # edges, from 0
    assert [data.classes[label] for label in data.train.labels] == ["cat", "dog"] * 2
    assert data.train.difficult.tolist() == [False, True] * 2
    (scene,) = next(data.train.batches([torch.tensor([1])], Resize(30, 40)))
    assert scene.boxes.tolist() == [[10, 5, 30, 25]]  # a difficult object is not learnt
    with pytest.raises(PskdError, match="no VOC split '2010/trainval'"):
        load("voc", tmp_path, ["2010/trainval"], ["2007/test"])
    with pytest.raises(PskdError, match=r"data\.train is empty"):
        load("voc", tmp_path, [], ["2007/test"])


def test_a_folder_has_its_own_classes(own: Path) -> None:
    data = load("voc_folder", own, ["train"], ["test"])
    assert data.classes == ("cat", "dog")
    assert data.train.offsets.tolist() == [0, 2, 2]
    assert load("voc_folder", own, ["train"], ["test"], classes=("dog", "cat")).train.labels.tolist() == [1, 0]
    with pytest.raises(PskdError, match=r"Main/nothing\.txt"):
        load("voc_folder", own, ["nothing"], ["test"])


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (("cat", (30, 5, 45, 20), 0), r"outside of the image"),
        (("cat", (-3, 5, 20, 20), 0), r"outside of the image"),
        (("cat", (20, 5, 19, 20), 0), r"the box has no area"),
        (("cat", ("nan", 5, 19, 20), 0), r"outside of the image"),
        (("horse", (5, 5, 20, 20), 0), r"its class is unknown"),
    ],
)
def test_wrong_objects_are_refused_or_left_out(item: Item, message: str, own: Path) -> None:
    write_voc(own, {"wrong": [CAT, item]}, suffix=".png")
    write_split(own, "test", "a", "wrong")
    with pytest.raises(PskdError, match=rf"Annotations/wrong\.xml: object '{item[0]}' at .*{message}.*on_bad=skip"):
        load("voc_folder", own, ["train"], ["test"])
    data = load("voc_folder", own, ["train"], ["test"], skip_bad=True)
    assert data.test.offsets.tolist() == [0, 2, 3]
    assert any("wrong.xml" in note for note in data.notes)


@pytest.mark.parametrize("what", ["image", "annotation", "xml"])
def test_missing_and_broken_files_are_refused_or_left_out(what: str, own: Path) -> None:
    write_voc(own, {"c": [CAT]}, suffix=".png")
    write_split(own, "train", "a", "c")
    annotation = own / "Annotations" / "c.xml"
    if what == "image":
        (own / "JPEGImages" / "c.png").unlink()
    elif what == "annotation":
        annotation.unlink()
    else:
        annotation.write_text("<annotation><object></annotation>")
    with pytest.raises(PskdError, match=r"c\.xml: .*on_bad=skip"):
        load("voc_folder", own, ["train"], ["test"])
    assert len(load("voc_folder", own, ["train"], ["test"], skip_bad=True).train) == 1


def test_an_image_of_another_size_than_noted_is_named(own: Path) -> None:
    Image.new("RGB", (50, 30)).save(own / "JPEGImages" / "a.png")
    data = load("voc_folder", own, ["train"], ["test"])
    for workers in (0, 1):
        with pytest.raises(PskdError, match=r"a\.png' has 50 x 30 pixels, its annotation says 40 x 30"):
            list(data.train.batches([torch.tensor([0])], Resize(30, 40), workers=workers))


def test_coco(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    Image.new("L", (40, 30)).save(tmp_path / "pictures" / "x.png")
    tree: dict[str, Any] = {
        "images": [{"id": 7, "file_name": "x.png", "width": 40, "height": 30}],
        "categories": [{"id": 9, "name": "dog"}, {"id": 3, "name": "cat"}],
        "annotations": [
            {"id": 1, "image_id": 7, "category_id": 9, "bbox": [10, 5, 20, 20]},
            {"id": 2, "image_id": 7, "category_id": 3, "bbox": [0, 0, 40, 30], "iscrowd": 1},
        ],
    }
    (tmp_path / "train.json").write_text(json.dumps(tree))
    split = ["train.json:pictures"]
    data = load("coco", tmp_path, split, split)
    assert data.classes == ("cat", "dog")
    assert data.train.labels.tolist() == [1, 0]
    assert data.train.boxes.tolist() == [[10, 5, 30, 25], [0, 0, 40, 30]]
    assert data.train.difficult.tolist() == [False, True]
    assert next(data.train.batches([torch.tensor([0])], Resize(30, 40)))[0].image.shape == (3, 30, 40)
    tree["annotations"][0]["category_id"] = 5
    (tmp_path / "train.json").write_text(json.dumps(tree))
    with pytest.raises(PskdError, match=r"train\.json: object 'category 5' .* its class is unknown"):
        load("coco", tmp_path, split, split)
    (tmp_path / "train.json").write_text("[]")
    with pytest.raises(PskdError, match=r"train\.json' is not an annotation file in COCO's JSON"):
        load("coco", tmp_path, split, split)
    with pytest.raises(PskdError, match=r"cannot read .*none\.json"):
        load("coco", tmp_path, ["none.json"], split)


def test_coco_that_contradicts_itself(tmp_path: Path) -> None:
    (tmp_path / "x.png").parent.mkdir(exist_ok=True)
    for name in ("x.png", "y.png"):
        Image.new("L", (40, 30)).save(tmp_path / name)
    box = {"category_id": 1, "bbox": [10, 5, 20, 20]}
    tree: dict[str, Any] = {
        "images": [{"id": 1, "file_name": "x.png"}, {"id": 2, "file_name": "y.png", "width": None, "height": 0}],
        "categories": [{"id": 1, "name": "cat"}],
        "annotations": [{"id": 1, "image_id": 1, **box}, {"image_id": 2, **box}, {"image_id": 2, **box}],
    }
    wrong = {
        "annotation 9 is of an unknown image, 7": ("annotations", {"id": 9, "image_id": 7, **box}),
        "image id 2 stands there twice": ("images", {"id": 2, "file_name": "z.png"}),
        "image file_name 'x.png' stands there twice": ("images", {"id": 3, "file_name": "x.png"}),
        "category id 1 stands there twice": ("categories", {"id": 1, "name": "dog"}),
        "category name 'cat' stands there twice": ("categories", {"id": 2, "name": "cat"}),
        "annotation id 1 stands there twice": ("annotations", {"id": 1, "image_id": 2, **box}),
    }
    for message, (section, item) in wrong.items():
        (tmp_path / "all.json").write_text(json.dumps({**tree, section: [*tree[section], item]}))
        with pytest.raises(PskdError, match=rf"all\.json: {message}"):
            load("coco", tmp_path, ["all.json"], ["all.json"])
        data = load("coco", tmp_path, ["all.json"], ["all.json"], skip_bad=True)
        assert data.notes[0].startswith("left out 2 annotations")  # one in each split
        assert (len(data.train), data.train.labels.tolist(), data.classes) == (2, [0, 0, 0], ("cat",))


def test_the_real_files(real_data: Path) -> None:
    published = real_data / "VOCdevkit" / "VOC2012"
    if not published.is_dir():
        pytest.skip("VOC2012 is not among the real data")
    scenes = load("voc", real_data, ["2012/val"], ["2012/val"], test_images=1).train
    names = (published / "ImageSets" / "Main" / "val.txt").read_text().split()
    texts = [(published / "Annotations" / f"{name}.xml").read_text() for name in names]
    assert [Path(name).stem for name in scenes.names] == names
    assert scenes.offsets.diff().tolist() == [text.count("<object>") for text in texts]
    assert int(scenes.difficult.sum()) == sum(text.count("<difficult>1<") for text in texts) > 0
    widths, heights = scenes.sizes[scenes.image_of_object].flip(1).unbind(1)
    assert (scenes.boxes.min(1).values >= 0).all()
    assert (scenes.boxes[:, 2] <= widths).all()
    assert (scenes.boxes[:, 3] <= heights).all()


def test_so_many_images_are_drawn_by_the_seed(own: Path) -> None:
    names = [f"n{number}" for number in range(12)]
    write_voc(own, {name: [CAT] * (number % 3) for number, name in enumerate(names)}, suffix=".png")
    write_split(own, "train", *names)
    options: dict[str, Any] = {"train_images": 6, "classes": ("cat", "dog")}
    drawn = [load("voc_folder", own, ["train"], ["test"], seed=seed, **options).train for seed in (0, 0, 1)]
    assert drawn[0].names == drawn[1].names != drawn[2].names
    assert drawn[0].fingerprint == drawn[1].fingerprint != drawn[2].fingerprint
    expected = [names.index(Path(name).stem) % 3 for name in drawn[0].names]
    assert drawn[0].offsets.diff().tolist() == expected
    options["train_images"] = 13
    with pytest.raises(PskdError, match=r"data\.train_images=13: there are 12"):
        load("voc_folder", own, ["train"], ["test"], **options)
    assert len(load("voc_folder", own, ["train"], ["test"], at_most=True, **options).train) == 12


def test_a_split_without_an_object_that_counts_is_refused(own: Path) -> None:
    write_voc(own, {"d": [DOG]}, suffix=".png")
    write_split(own, "test", "b", "d")
    with pytest.raises(PskdError, match=r"data\.test: test of .* has no object to learn or to test"):
        load("voc_folder", own, ["train"], ["test"])


def test_unknown_names_are_told(tmp_path: Path) -> None:
    with pytest.raises(PskdError, match=r"data 'vox' is unknown; did you mean voc"):
        load("vox", tmp_path, ["x"], ["y"])


class TestDigitScenes:
    def test_are_made_by_the_seed(self) -> None:
        one, same, other = digit_scenes("train", 20, 3), digit_scenes("train", 20, 3), digit_scenes("train", 20, 4)
        assert one.fingerprint == same.fingerprint != other.fingerprint
        more = digit_scenes("train", 30, 3)
        assert torch.equal(more.source[:20], one.source)  # type: ignore[index,arg-type]
        assert digit_scenes("test", 20, 3).fingerprint == digit_scenes("test", 20, 4).fingerprint

    def test_boxes_are_where_the_ink_is(self) -> None:
        scenes = digit_scenes("train", 50, 0)
        assert isinstance(scenes.source, torch.Tensor)
        rows, columns = torch.meshgrid(torch.arange(CANVAS), torch.arange(CANVAS), indexing="ij")
        x1, y1, x2, y2 = (edge[:, None, None] for edge in scenes.boxes.unbind(1))
        inside = (columns >= x1) & (columns < x2) & (rows >= y1) & (rows < y2)  # (M, H, W)
        ink = scenes.source[scenes.image_of_object, 0] > 60
        assert (ink & inside).flatten(1).sum(1).min() > 20
        covered = torch.zeros(50, CANVAS, CANVAS, dtype=torch.int64).index_add_(
            0, scenes.image_of_object, inside.long()
        )
        assert int(covered.max()) == 1  # no two touch
        assert not bool((scenes.source[:, 0][covered == 0] > 0).any())
        assert 2 < scenes.offsets.diff().float().mean() < 6

    def test_test_scenes_show_test_digits(self) -> None:
        """At a side of 16, twice that of the digit, averaging pairs of pixels gives back a blurred copy of it."""
        scenes, digits = digit_scenes("test", 200, 0), load_digits()
        sides = scenes.boxes[:, 2] - scenes.boxes[:, 0]
        found = []
        for number in (sides == 16).nonzero().flatten().tolist():
            left, top = scenes.boxes[number, :2].long().tolist()
            patch = scenes.source[scenes.image_of_object[number], 0, top : top + 16, left : left + 16].float()  # type: ignore[index]
            small = torch.nn.functional.avg_pool2d(patch[None, None], 2).flatten()

            def nearest(split: Any, small: torch.Tensor = small) -> float:
                return float((split.images.flatten(1).float() - small).norm(dim=1).min())

            found.append(nearest(digits.test) < nearest(digits.train))
        assert len(found) > 10
        assert sum(found) > 0.8 * len(found)


class TestMovingTogether:
    @staticmethod
    def image_and_box() -> tuple[torch.Tensor, torch.Tensor]:
        image = torch.zeros(1, 60, 80, dtype=torch.uint8)
        image[:, 12:36, 8:40] = 255
        return image, torch.tensor([[8.0, 12.0, 40.0, 36.0]])

    def test_the_box_stays_on_its_object(self) -> None:
        augment = BoxAugment((30, 60, 120), 150, flip=True)
        shapes, lefts = set(), set()
        for index in range(40):
            moved, boxes = augment(*self.image_and_box(), torch.tensor([index]), seed=0, epoch=0)
            rows, columns = (moved[0] > 127).nonzero().unbind(1)
            seen = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
            torch.testing.assert_close(boxes[0], torch.stack(seen).float(), atol=1.01, rtol=0)
            shapes.add(tuple(moved.shape[1:]))
            lefts.add(round(float(boxes[0, 0]) / moved.shape[2], 1))
        assert shapes == {(30, 40), (60, 80), (112, 150)}  # the last is cut down to the longest side
        assert lefts == {0.1, 0.5}

    def test_is_a_function_of_seed_epoch_and_sample(self) -> None:
        scenes = digit_scenes("train", 32, 0)
        augment = BoxAugment((64, 96), 200, flip=True)

        def seen(order: list[list[int]], seed: int, epoch: int) -> dict[int, torch.Tensor]:
            plan = [torch.tensor(part) for part in order]
            batches = scenes.batches(plan, partial(augment, seed=seed, epoch=epoch))
            return {
                i: s.boxes for part, batch in zip(order, batches, strict=True) for i, s in zip(part, batch, strict=True)
            }

        forth = seen([list(range(32))], 0, 0)
        back = seen([[i] for i in reversed(range(32))], 0, 0)
        assert all(torch.equal(forth[i], back[i]) for i in forth)
        for seed, epoch in ((1, 0), (0, 1)):
            other = seen([list(range(32))], seed, epoch)
            assert 8 < sum(not torch.equal(forth[i], other[i]) for i in forth) <= 32

    def test_scaling_back(self) -> None:
        boxes = torch.rand(5, 4) * 100
        torch.testing.assert_close(scale_boxes(scale_boxes(boxes, (30, 40), (90, 61)), (90, 61), (30, 40)), boxes)


def test_workers_give_the_same(own: Path) -> None:
    data = load("voc_folder", own, ["train"], ["test"])
    plan = [torch.tensor([0]), torch.tensor([1, 0])]
    augment = BoxAugment((24, 30), 60, flip=True)

    def batches(scenes: SceneSplit, workers: int) -> list[Any]:
        return [
            scene
            for batch in scenes.batches(plan, partial(augment, seed=1, epoch=2), workers=workers)
            for scene in batch
        ]

    for one, two in zip(batches(data.train, 0), batches(data.train, 2), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
