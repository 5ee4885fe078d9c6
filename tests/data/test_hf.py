"""Data sets of Hugging Face, from folders: nothing is fetched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from pskd.errors import PskdError
from pskd.workbench import data

datasets = pytest.importorskip("datasets")


def table(count: int, *, named: bool, size: int = 8) -> Any:
    """Images whose grey value is their number."""
    kind = datasets.ClassLabel(names=["cat", "dog"]) if named else datasets.Value("string")
    features = datasets.Features({"picture": datasets.Image(), "kind": kind})
    labels: list[Any] = [number % 2 if named else "dc"[number % 2] for number in range(count)]
    images = [Image.fromarray(np.full((size, size), number, np.uint8)) for number in range(count)]
    return datasets.Dataset.from_dict({"picture": images, "kind": labels}, features)


def saved(folder: Path, **splits: Any) -> str:
    datasets.DatasetDict(splits).save_to_disk(str(folder))
    return f"hf:{folder}"


COLUMNS = {"image": "picture", "label": "kind"}


def test_a_saved_set_with_its_splits(tmp_path: Path):
    splits = {"train": table(20, named=True), "validation": table(4, named=True), "test": table(6, named=True)}
    name = saved(tmp_path / "set", **splits)
    loaded = data.load(name, **COLUMNS)
    assert loaded.classes == ("cat", "dog")
    assert (len(loaded.train), len(loaded.val), len(loaded.test)) == (20, 4, 6)
    assert (loaded.view.channels, loaded.view.size, loaded.view.resize) == (1, (8, 8), None)
    batch = next(loaded.test.batches([torch.tensor([5, 2])]))
    assert batch.labels.tolist() == [1, 0]
    assert loaded.test.pixels(5).unique().tolist() == [5]
    assert loaded.train.fingerprint == data.load("hf:elsewhere", root=name[3:], **COLUMNS).train.fingerprint
    reported = data.load(name, test="validation", **COLUMNS)
    assert (reported.val, len(reported.test)) == (None, 4)
    other = saved(tmp_path / "other", train=table(20, named=True, size=9), test=table(6, named=True))
    assert data.load(other, **COLUMNS).train.fingerprint != loaded.train.fingerprint


def test_one_table_of_names_is_divided(tmp_path: Path):
    table(30, named=False).save_to_disk(str(tmp_path / "set"))
    loaded = data.load(f"hf:{tmp_path / 'set'}", **COLUMNS)
    assert loaded.classes == ("c", "d")
    assert (len(loaded.train), len(loaded.test)) == (24, 6)
    numbers = [
        int(split.pixels(place)[0, 0, 0]) for split in (loaded.train, loaded.test) for place in range(len(split))
    ]
    assert sorted(numbers) == list(range(30))
    assert loaded.test.labels.bincount().tolist() == [3, 3]


def test_a_folder_of_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    for split in ("train", "test"):
        for shade, kind in enumerate(("cat", "dog")):
            folder = tmp_path / "images" / split / kind
            folder.mkdir(parents=True)
            for number in range(3):
                Image.new("RGB", (8 + number, 8), (100 * shade + number, 0, 0)).save(folder / f"{number}.png")
    loaded = data.load(f"hf:{tmp_path / 'images'}", image_size=8)
    assert loaded.classes == ("cat", "dog")
    assert (len(loaded.train), len(loaded.test)) == (6, 6)
    assert loaded.view.channels == 3
    assert len(loaded.train.fingerprint) == 32


def test_each_mistake_is_one_line(tmp_path: Path):
    hidden = table(4, named=True).cast_column("kind", datasets.Value("int64"))
    hidden = hidden.map(lambda row: {"kind": -1}).cast_column("kind", datasets.ClassLabel(names=["cat", "dog"]))
    name = saved(tmp_path / "set", train=table(6, named=True), validation=table(4, named=True), test=hidden)
    wrong = {
        r"has the columns picture, kind: name that of the image with data\.image=": {"name": name},
        r"labels of the split test are missing; report on another: data\.test=validation": {"name": name, **COLUMNS},
        "has no split dev, only train, validation, test": {"name": name, **COLUMNS, "test": "dev"},
        r"is neither a folder nor in the cache of datasets, fetch it with data\.download=true": {"name": "hf:no/such"},
        "there is no such folder, and it is no name of the Hub": {"name": "hf:hf://buckets/a/b"},
        "write data=hf:NAME": {"name": "hf"},
    }
    for message, given in wrong.items():
        with pytest.raises(PskdError, match=message) as caught:
            data.load(**given)
        assert "\n" not in str(caught.value)
