from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image
from processes import exit_code, in_child, obey_permissions

from pskd.errors import PskdError
from pskd.workbench import data
from pskd.workbench.data import OnDisk


def fill(folder: Path, *files: str) -> None:
    for number, file in enumerate(files):
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40 + number, 30), (number * 20, 0, 0)).save(path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    fill(tmp_path / "train", "cat/1.png", "cat/2.jpg", "cat/more/3.webp", "dog/1.gif", "dog/2.BMP")
    fill(tmp_path / "test", "cat/1.tiff", "dog/1.png")
    return tmp_path


def test_class_folders_become_splits(root: Path):
    (root / "train" / "cat" / "notes.txt").write_text("not an image")
    (root / "train" / "cat" / "._1.png").write_text("what a Mac leaves behind")
    (root / "train" / ".cache").mkdir()
    folder = data.load("folder", root=str(root))
    assert folder.classes == ("cat", "dog")
    assert folder.val is None
    assert folder.train.paths == (
        "train/cat/1.png",
        "train/cat/2.jpg",
        "train/cat/more/3.webp",
        "train/dog/1.gif",
        "train/dog/2.BMP",
    )
    assert folder.train.labels.tolist() == [0, 0, 0, 1, 1]
    assert folder.test.labels.tolist() == [0, 1]
    batch = next(folder.train.batches([torch.arange(5)]))
    assert batch.inputs.shape == (5, 3, 224, 224)


def test_a_val_folder_is_the_validation_split(root: Path):
    fill(root / "val", "cat/1.png", "dog/1.png", "dog/2.png")
    folder = data.load("folder", root=root)
    assert isinstance(folder.val, OnDisk)
    assert folder.val.labels.tolist() == [0, 1, 1]
    with pytest.raises(PskdError, match="validation split of its own"):
        data.load("folder", root=root, val_fraction=0.1)


def test_subsets_of_files(root: Path):
    fill(root / "train", "eel/1.png", "eel/2.png")
    fill(root / "test", "eel/1.png")
    some = data.load("folder", root=root, num_classes=2, per_class=2, val_fraction=0.25)
    assert (len(some.train), len(some.val), len(some.test)) == (3, 1, 2)
    assert some.classes == ("cat", "dog")


@pytest.mark.parametrize(("size", "resize"), [(None, 256), (224, 256), (448, 512), (96, 110), (64, None), (32, None)])
def test_large_images_are_scaled_a_bit_larger_than_the_view(root: Path, size: int | None, resize: int | None):
    view = data.load("folder", root=root, image_size=size).view
    assert view.resize == resize
    assert view.size == (size or 224, size or 224)


def test_small_images_are_seen_whole(tmp_path: Path):
    image = Image.effect_noise((32, 32), 80).convert("RGB")
    for place in ("train/a", "train/b", "test/a", "test/b"):
        (tmp_path / place).mkdir(parents=True)
        image.save(tmp_path / place / "1.png")
    folder = data.load("folder", root=tmp_path, image_size=32)
    pixels = folder.view.open(tmp_path / "test/a/1.png")
    assert pixels[0].flatten().tolist() == list(image.getchannel(0).tobytes())


def test_imagenets_val_folder_is_the_test_split(tmp_path: Path):
    fill(tmp_path / "train", "n01440764/a.JPEG", "n01443537/b.JPEG")
    fill(tmp_path / "val", "n01440764/c.JPEG", "n01443537/d.JPEG")
    imagenet = data.load("imagenet", root=tmp_path)
    assert imagenet.name == "imagenet"
    assert imagenet.classes == ("n01440764", "n01443537")
    assert imagenet.val is None
    assert imagenet.test.paths == ("val/n01440764/c.JPEG", "val/n01443537/d.JPEG")


def remove(root: Path, split: str) -> Path:
    shutil.rmtree(root / split)
    return root / split


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda root: remove(root, "test"), "no folder .*test'"),
        (lambda root: (root / "test").rename(root / "val"), "has a val but no test folder: rename val to test"),
        (lambda root: remove(root, "train"), r"no folder .*train'.*data\.root="),
        (lambda root: remove(root, "train").mkdir(), "train' holds no class folders"),
        (lambda root: fill(remove(root, "train"), "1.png"), "train' holds no class folders"),
        (lambda root: (root / "train" / "eel").mkdir(), "eel' holds no image"),
        (lambda root: (root / "test/dog/1.png").unlink(), "test/dog' holds no image"),
        (lambda root: fill(root / "train", "eel/1.png"), "class 'eel' is in .*train' but not in .*test'"),
        (lambda root: fill(root / "test", "eel/1.png"), "class 'eel' is in .*test' but not in .*train'"),
        (lambda root: fill(root / "val", "cat/1.png"), "class 'dog' is in .*train' but not in .*val'"),
        (lambda root: remove(root, "train/dog"), "holds one class, 'cat'"),
    ],
)
def test_each_mistake_is_one_line(root: Path, harm, message: str):
    harm(root)
    with pytest.raises(PskdError, match=message) as caught:
        data.load("folder", root=root)
    assert "\n" not in str(caught.value)


def test_an_image_size_must_be_positive(root: Path):
    with pytest.raises(PskdError, match=r"data\.image_size=0"):
        data.load("folder", root=root, image_size=0)


def test_no_imagenet_tells_what_to_do(tmp_path: Path):
    with pytest.raises(PskdError, match=r"no ImageNet in .*data\.root=.*train and val") as caught:
        data.load("imagenet", root=tmp_path)
    assert "\n" not in str(caught.value)


def test_links_that_lead_back_are_not_entered(root: Path, tmp_path_factory: pytest.TempPathFactory):
    plain = data.load("folder", root=root).train.paths
    (root / "train" / "cat" / "loop").symlink_to("../..")
    (root / "train" / "cat" / "again").symlink_to(".")
    (root / "train" / "cat" / "tested").symlink_to(root / "test" / "cat")
    (root / "train" / "cat" / "other").symlink_to("../dog")
    (root / "train" / "dog" / "above").symlink_to(root.parent)
    assert data.load("folder", root=root).train.paths == plain
    outside = tmp_path_factory.mktemp("outside")
    fill(outside, "9.png", "deep/8.png")
    (outside / "deep" / "back").symlink_to(root)
    (root / "train" / "dog" / "outside").symlink_to(outside)
    (root / "train" / "dog" / "twice").symlink_to(outside)
    new = set(data.load("folder", root=root).train.paths) - set(plain)
    assert {Path(path).name for path in new} == {"9.png", "8.png"}
    assert len(new) == 2


def test_a_class_folder_that_cannot_be_read_is_not_called_empty(tmp_path: Path):
    message, closed = tmp_path / "message", tmp_path / "train" / "cat"
    for split in ("train", "test"):
        fill(tmp_path / split, "cat/1.png", "dog/1.png")
    closed.chmod(0o000)

    def work() -> None:
        obey_permissions()
        try:
            data.load("folder", root=tmp_path)
        except PskdError as error:
            message.write_text(str(error))

    assert exit_code(in_child(work)) == 0
    closed.chmod(0o755)
    assert f"cannot read '{closed}' (Permission denied)" in message.read_text()
