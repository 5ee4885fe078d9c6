"""Samples that know their index, and fingerprints that tell data sets apart."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, Subset, TensorDataset

from pskd import Indexed
from pskd.errors import PskdError

IMAGES = torch.arange(24.0).reshape(6, 4)
LABELS = torch.tensor([0, 1, 2, 0, 1, 2])


def test_a_tuple_gets_its_index_behind_it() -> None:
    data = Indexed(TensorDataset(IMAGES, LABELS))
    x, y, index = data[4]
    assert len(data) == 6
    assert torch.equal(x, IMAGES[4])
    assert (int(y), index) == (1, 4)


def test_lists_mappings_and_single_objects() -> None:
    assert Indexed([["a", 1], ["b", 0]])[1] == ("b", 0, 1)
    assert Indexed([{"text": "a"}, {"text": "b"}])[1] == {"text": "b", "index": 1}
    assert Indexed(["a", "b"])[1] == ("b", 1)


def test_an_index_from_the_end_is_the_same_sample() -> None:
    data = Indexed(["a", "b", "c"])
    assert data[-1] == ("c", 2)
    assert data[-3] == data[0] == ("a", 0)
    for outside in (-4, -6, 3):
        with pytest.raises(IndexError):
            data[outside]


def test_an_index_is_one_number_of_any_library() -> None:
    data = Indexed(["a", "b", "c"])
    assert data[np.int64(-1)] == data[torch.tensor(2)] == ("c", 2)
    for several in ([1], np.array([0, 1]), torch.tensor([0, 1]), "b", 1.5, slice(1, 2)):
        with pytest.raises(PskdError, match="index must be one whole number"):
            data[several]  # type: ignore[index]


class Painted(TensorDataset):
    """With what torchvision's data sets have, and with fetching by the batch."""

    classes = ("cat", "dog", "bee")

    def __init__(self, *tensors: torch.Tensor) -> None:
        super().__init__(*tensors)
        self.transform = str

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


def test_attributes_of_the_data_set_can_be_read() -> None:
    data = Indexed(Painted(IMAGES, LABELS))
    assert data.classes == ("cat", "dog", "bee")
    assert data.transform is str
    assert not hasattr(data, "no_such_name")
    assert not hasattr(data, "__getitems__")
    assert len(next(iter(DataLoader(data, batch_size=4)))) == 3
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = data.no_such_name


def test_attributes_of_the_data_set_can_be_set() -> None:
    """As if it were not wrapped; what it does not have stays outside of it."""
    wrapped = Painted(IMAGES, LABELS)
    data = Indexed(wrapped)
    data.transform = repr  # type: ignore[method-assign]
    data.note = "mine"
    assert wrapped.transform is repr
    assert data.note == "mine"
    assert not hasattr(wrapped, "note")
    data.dataset = Painted(IMAGES[:2], LABELS[:2])
    assert (len(data), len(wrapped)) == (2, 6)


def test_rows_of_a_hugging_face_data_set(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    columns = {"text": [f"sentence {n}" for n in range(6)], "label": LABELS.tolist()}
    rows = datasets.Dataset.from_dict(columns)
    data = Indexed(rows)
    assert data[4] == {"text": "sentence 4", "label": 1, "index": 4}
    assert data.column_names == ["text", "label"]
    loader = DataLoader(data, batch_size=4, num_workers=2)
    assert [batch["index"].tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5]]
    rows.save_to_disk(tmp_path / "saved")
    same = datasets.load_from_disk(tmp_path / "saved").with_format("torch")
    assert Indexed(same).fingerprint == Indexed(rows.map(lambda row: row)).fingerprint == data.fingerprint
    others = [rows.select([1, 0, 2, 3, 4, 5]), rows.select(range(5)), rows.rename_column("text", "words")]
    others.append(datasets.Dataset.from_dict({**columns, "label": [1, 1, 2, 0, 1, 2]}))
    assert len({Indexed(each).fingerprint for each in (*others, rows)}) == 5
    with pytest.raises(PskdError, match="a stream has no indices"):
        Indexed(rows.to_iterable_dataset())


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, lambda data: pickle.loads(pickle.dumps(data))])
def test_it_can_be_copied_and_pickled(how: Any) -> None:
    data = how(Indexed(Painted(IMAGES, LABELS)))
    assert data.classes == ("cat", "dog", "bee")
    assert data[2][2] == 2
    assert data.fingerprint == Indexed(Painted(IMAGES, LABELS)).fingerprint


def test_iterating_ends() -> None:
    assert list(Indexed(["a", "b"])) == [("a", 0), ("b", 1)]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_collates_the_index(workers: int) -> None:
    loader = DataLoader(Indexed(TensorDataset(IMAGES, LABELS)), batch_size=4, shuffle=True, num_workers=workers)
    seen = []
    for x, y, index in loader:
        assert index.dtype == torch.int64
        assert torch.equal(x, IMAGES[index])
        assert torch.equal(y, LABELS[index])
        seen += index.tolist()
    assert sorted(seen) == list(range(6))
    batch = next(iter(DataLoader(Indexed([{"label": n} for n in (3, 4)]), batch_size=2)))
    assert {name: part.tolist() for name, part in batch.items()} == {"label": [3, 4], "index": [0, 1]}


def test_a_stream_has_no_index() -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(3))

    with pytest.raises(PskdError, match=re.escape("dataset: a stream has no indices; use memory=pskd.Snapshot(model)")):
        Indexed(Stream())


class Folder:
    """What torchvision's ``DatasetFolder`` shows of itself."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        classes = sorted(folder.name for folder in root.iterdir())
        self.samples = [
            (str(path), number) for number, name in enumerate(classes) for path in sorted((root / name).iterdir())
        ]

    def __len__(self) -> int:
        return len(self.samples)


def image_folder(root: Path) -> Path:
    for name in ("cat", "dog"):
        (root / name).mkdir(parents=True)
        for number in range(3):
            (root / name / f"{number}.png").write_bytes(bytes(10 * number + 5))
    return root


def fingerprint(data: Any) -> str:
    return Indexed(data).fingerprint


def test_of_a_folder(tmp_path: Path) -> None:
    root = image_folder(tmp_path / "here")
    first = fingerprint(Folder(root))
    assert first == fingerprint(Folder(root))
    assert first == fingerprint(Folder(image_folder(tmp_path / "there")))  # wherever it lies

    reordered, relabelled = Folder(root), Folder(root)
    reordered.samples.reverse()
    relabelled.samples[0] = (relabelled.samples[0][0], 1)
    prints = [first, fingerprint(reordered), fingerprint(relabelled)]
    file = root / "dog" / "2.png"
    file.write_bytes(b"of another size")
    prints.append(fingerprint(Folder(root)))
    file = file.rename(root / "dog" / "3.png")
    prints.append(fingerprint(Folder(root)))
    file.unlink()
    prints.append(fingerprint(Folder(root)))
    (root / "dog").rename(root / "bee")
    prints.append(fingerprint(Folder(root)))
    assert len(set(prints)) == 7


def test_parts_do_not_run_together(tmp_path: Path) -> None:
    """Label 1 before file "1b" is not label 11 before file "b"."""
    root = tmp_path / "data"
    (root / "class").mkdir(parents=True)
    first, second = Folder(root), Folder(root)
    for data, files in ((first, [("a", 1), ("1b", 0)]), (second, [("a", 11), ("b", 0)])):
        data.samples = [(str(root / name), label) for name, label in files]
        for path, _ in data.samples:
            Path(path).write_bytes(b"12345")
    assert fingerprint(first) != fingerprint(second)


def test_of_tensors() -> None:
    first = fingerprint(TensorDataset(IMAGES, LABELS))
    order = torch.tensor([1, 0, 2, 3, 4, 5])
    others = [
        TensorDataset(IMAGES[order], LABELS[order]),
        TensorDataset(IMAGES, LABELS[order]),
        TensorDataset(IMAGES[:5], LABELS[:5]),
        TensorDataset(IMAGES.reshape(6, 2, 2), LABELS),
        TensorDataset(IMAGES.bfloat16(), LABELS),
    ]
    assert first == fingerprint(TensorDataset(IMAGES.clone(), LABELS.clone()))
    assert len({first, *map(fingerprint, others)}) == 6


def test_of_parts_and_sums() -> None:
    whole = TensorDataset(IMAGES, LABELS)
    subsets = [Subset(whole, [0, 1, 2]), Subset(whole, [0, 2, 1]), Subset(whole, range(4))]
    sums = [ConcatDataset([subsets[0], subsets[2]]), ConcatDataset([subsets[2], subsets[0]])]
    assert len({fingerprint(data) for data in (whole, *subsets, *sums)}) == 6
    assert fingerprint(Subset(whole, range(3))) == fingerprint(subsets[0])
    assert fingerprint(whole) == fingerprint(Indexed(whole))


def test_of_sentences_and_other_lists() -> None:
    lists = [
        ["one", "two", "three"],
        ["two", "one", "three"],
        ["one", "two"],
        ["onet", "wo", "three"],
        [("one", "eins"), ("two", "zwei"), ("three", "drei")],
        [("one", "eins"), ("two", "drei"), ("three", "zwei")],
        [(IMAGES[0], 0), (IMAGES[1], 1)],
        [(IMAGES[0], 1), (IMAGES[1], 1)],
        [(IMAGES[0], np.int64(0)), (IMAGES[1], np.int64(1))],
        [{"x": "one", "y": 0}],
        [{"x": "one", "y": 1}],
    ]
    assert len({fingerprint(data) for data in lists}) == len(lists)


class InMemory:
    """What torchvision's CIFAR and MNIST show of themselves."""

    def __init__(self, data: Any, targets: list[int]) -> None:
        self.data, self.targets = data, targets

    def __len__(self) -> int:
        return len(self.data)


def test_of_a_data_set_in_memory() -> None:
    images = np.arange(24, dtype=np.uint8).reshape(6, 2, 2)
    targets = LABELS.tolist()
    data = [InMemory(images, targets), InMemory(images[::-1], targets), InMemory(images, targets[::-1])]
    data.append(InMemory(torch.from_numpy(images + 1), targets))
    assert len({fingerprint(each) for each in data}) == 4
    assert fingerprint(data[0]) == fingerprint(InMemory(images.copy(), list(targets)))


def test_an_opaque_data_set_is_known_by_type_and_length() -> None:
    class Opaque:
        def __init__(self, length: int) -> None:
            self.length = length
            self.samples = [{"secret": number} for number in range(length)]

        def __len__(self) -> int:
            return self.length

    assert fingerprint(Opaque(3)) == fingerprint(Opaque(3)) != fingerprint(Opaque(4))
