from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from pskd.errors import PskdError
from pskd.workbench import data


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Thirty pictures of different sizes, a grey value for each."""
    (tmp_path / "pictures").mkdir()
    for number in range(30):
        Image.new("RGB", (20 + number, 20), (8 * number,) * 3).save(tmp_path / "pictures" / f"{number}.png")
    return tmp_path


def rows(splits: str = "", *, labels: str = "cat,dog,owl") -> list[list[str]]:
    names = labels.split(",")
    every = [[f"pictures/{number}.png", names[number % 3]] for number in range(30)]
    return [[*row, splits.split(",")[number % 5]] if splits else row for number, row in enumerate(every)]


def write(folder: Path, header: list[str], lines: list[list[str]], name: str = "images.csv") -> Path:
    separator = "\t" if name.endswith("tsv") else ","
    text = "\n".join(separator.join(line) for line in [header, *lines])
    (folder / name).write_text(text, encoding="utf-8-sig")
    return folder / name


def test_a_split_column_says_what_is_what(images: Path):
    lines = rows("train,train,validation,test,train")
    table = data.load("table", root=write(images, ["path", "class", "split"], lines), image_size=16)
    assert table.classes == ("cat", "dog", "owl")
    assert (len(table.train), len(table.val), len(table.test)) == (18, 6, 6)
    assert table.test.paths[:2] == ("pictures/3.png", "pictures/8.png")
    assert table.test.labels[:2].tolist() == [0, 2]
    assert table.view.size == (16, 16)
    assert int(table.test.pixels(1).max()) == 8 * 8
    again = data.load("table", root=write(images, ["path", "class", "split"], lines, "images.tsv"), image_size=16)
    assert again.train.fingerprint == table.train.fingerprint


def test_without_one_a_fifth_of_each_class_is_for_the_test(images: Path):
    file = write(images, ["where", "what"], rows(labels="10,9,-"))
    table = data.load("table", root=file, image="where", label="what", val_fraction=0.25)
    assert table.classes == ("9", "10", "-")
    assert table.test.labels.bincount().tolist() == [2, 2, 2]
    assert (len(table.train), len(table.val)) == (18, 6)
    assert not set(table.test.paths) & {*table.train.paths, *table.val.paths}
    assert table.test.paths == data.load("table", root=file, image="where", label="what", seed=9).test.paths


def test_parquet_says_the_same_as_csv(images: Path):
    pandas = pytest.importorskip("pandas")
    lines = rows("train,train,train,val,test")
    pandas.DataFrame(lines, columns=["image", "label", "split"]).to_parquet(images / "images.parquet")
    one = data.load("table", root=images / "images.parquet")
    other = data.load("table", root=write(images, ["image", "label", "split"], lines))
    assert one.classes == other.classes
    assert one.train.fingerprint == other.train.fingerprint
    assert one.test.fingerprint == other.test.fingerprint


@pytest.mark.parametrize(
    ("header", "lines", "options", "wrong"),
    [
        (["path", "kind"], rows(), {}, r"has the columns path, kind: name that of the label with data\.label="),
        (["path", "label"], rows(), {"image": "file"}, r"data\.image=file: .* has no such column, only path, label"),
        (["path", "label", "split"], rows("train,test,train,maybe,train"), {}, "row 4 is of the split 'maybe'"),
        (["path", "label", "split"], rows("train,val,train,val,train"), {}, "no row of the split test"),
        (["path", "label"], [*rows(), ["pictures/1.png", " "]], {}, "row 31 has no path or no label"),
        (["path", "label"], rows(labels="a,a,a"), {}, "names 1 classes: there must be at least two"),
        (["path", "label", "split"], [["a", "x", "train"], ["b", "y", "test"]], {}, "class 'y' has no training image"),
        (["path", "label"], [], {}, "has no rows"),
    ],
)
def test_each_mistake_is_one_line(
    images: Path, header: list[str], lines: list[list[str]], options: dict[str, str], wrong: str
):
    with pytest.raises(PskdError, match=wrong) as caught:
        data.load("table", root=write(images, header, lines), **options)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_table_is_refused(tmp_path: Path):
    (tmp_path / "other.parquet").write_bytes(b"PAR1 but not really")
    for file in (tmp_path / "other.parquet", tmp_path / "missing.csv", tmp_path):
        with pytest.raises(PskdError, match="cannot read '"):
            data.load("table", root=file)
