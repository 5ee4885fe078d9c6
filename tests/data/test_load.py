from __future__ import annotations

import gzip
import hashlib
import pickle
import shutil
import tarfile
import threading
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from processes import exit_code, in_child
from torchvision.datasets import FashionMNIST

from pskd.errors import PskdError
from pskd.workbench import data, registry
from pskd.workbench.data import ImageData, InMemory
from pskd.workbench.data.subsets import add_label_noise


def rows(split: InMemory) -> set[tuple[int, bytes]]:
    return {(int(label), image.numpy().tobytes()) for image, label in zip(split.images, split.labels, strict=True)}


class TestDigits:
    def test_is_a_fixed_stratified_split_of_all_digits(self):
        digits = data.load("digits")
        assert digits.classes == tuple("0123456789")
        assert digits.val is None
        assert len(digits.train) + len(digits.test) == 1797
        assert digits.train.images.shape[1:] == (1, 8, 8)
        assert digits.train.images.dtype == torch.uint8
        assert int(digits.train.images.max()) == 255
        everything = torch.cat((digits.train.labels, digits.test.labels)).bincount()
        assert torch.equal(digits.test.labels.bincount(), (everything * 0.2).round().long())
        assert data.load("digits", seed=5).train.fingerprint == digits.train.fingerprint
        assert data.load("digits", seed=5).test.fingerprint == digits.test.fingerprint

    def test_runs_of_earlier_versions_find_their_data(self):
        digits = data.load("digits", val_fraction=0.1, seed=3, noise=0.3, per_class=40, num_classes=7)
        marks = [split.fingerprint for split in digits.splits.values()]
        assert marks == [
            "d5ce8851f73e03c489bd6d7741c944ea",
            "ce7a0614833ea487c306c7ec1de3a956",
            "4216e34d7e445f4149e23ede877ebb14",
        ]

    def test_the_training_images_are_normalised_to_mean_0_and_deviation_1(self):
        digits = data.load("digits")
        inputs = digits.view.normalize(digits.train.images)
        assert abs(inputs.mean()) < 1e-5
        assert abs(inputs.std(correction=0) - 1) < 1e-5


class TestSubsets:
    def test_a_validation_split_has_the_exact_size_and_takes_away_nothing_else(self):
        whole, parts = data.load("digits"), data.load("digits", val_fraction=0.1, seed=3)
        assert len(parts.val) == round(0.1 * len(whole.train))
        assert len(parts.train) == len(whole.train) - len(parts.val)
        assert torch.equal(torch.cat((parts.train.labels, parts.val.labels)).bincount(), whole.train.labels.bincount())
        assert rows(parts.train) | rows(parts.val) == rows(whole.train)
        assert parts.test.fingerprint == whole.test.fingerprint
        assert parts.view == whole.view

    def test_the_validation_split_depends_on_the_seed_alone(self):
        same, again, other = (data.load("digits", val_fraction=0.2, seed=seed).val for seed in (1, 1, 2))
        assert same.fingerprint == again.fingerprint
        assert same.fingerprint != other.fingerprint
        shared = len(rows(same) & rows(other)) / len(same)
        assert 0.1 < shared < 0.3  # two independent draws of a fifth

    def test_fewer_classes(self):
        some = data.load("digits", num_classes=3)
        assert some.classes == ("0", "1", "2")
        for split in (some.train, some.test):
            assert split.labels.unique().tolist() == [0, 1, 2]
        whole = data.load("digits")
        assert len(some.test) == int((whole.test.labels < 3).sum())

    def test_fewer_samples_of_each_class(self):
        some = data.load("digits", per_class=12, num_classes=4)
        assert some.train.labels.bincount().tolist() == [12] * 4
        assert rows(some.train) < rows(data.load("digits").train)
        assert len(some.test) == len(data.load("digits", num_classes=4).test)
        first, again, other = (data.load("digits", per_class=12, seed=seed).train.fingerprint for seed in (0, 0, 1))
        assert first == again != other

    def test_sizes_that_are_caps_take_what_there_is(self):
        whole = data.load("digits")
        counts = whole.train.labels.bincount()
        between = int(counts.min()) + 1
        some = data.load("digits", per_class=between, num_classes=20, at_most=True)
        assert some.train.labels.bincount().tolist() == counts.clamp(max=between).tolist()
        assert data.load("digits", per_class=1000, at_most=True).train.fingerprint == whole.train.fingerprint
        plain, capped = (data.load("digits", per_class=12, num_classes=4, at_most=cap) for cap in (False, True))
        assert plain.train.fingerprint == capped.train.fingerprint

    def test_validation_samples_come_out_of_the_subset(self):
        some = data.load("digits", per_class=20, val_fraction=0.25)
        assert (len(some.train), len(some.val)) == (150, 50)

    def test_wrong_labels_are_in_the_training_split_only(self):
        clean, noisy = (data.load("digits", val_fraction=0.2, seed=3, noise=noise) for noise in (0.0, 0.4))
        changed = noisy.train.labels != clean.train.labels
        assert int(changed.sum()) == round(0.4 * len(clean.train))
        assert noisy.train.images.equal(clean.train.images)
        assert noisy.train.fingerprint != clean.train.fingerprint
        for split in ("val", "test"):
            assert getattr(noisy, split).fingerprint == getattr(clean, split).fingerprint
        again, other = (data.load("digits", val_fraction=0.2, seed=3 + more, noise=0.4) for more in (0, 1))
        assert again.train.labels.equal(noisy.train.labels)
        assert not other.train.labels.equal(noisy.train.labels)
        batch = next(noisy.train.batches([torch.arange(50)]))
        assert batch.labels.equal(noisy.train.labels[:50])

    def test_every_other_class_is_equally_likely(self):
        labels = torch.arange(5).repeat(20_000)
        split = InMemory(torch.zeros(len(labels), 1, 1, 1, dtype=torch.uint8), labels, data.load("digits").view)
        whole = ImageData("many", tuple("abcde"), split, None, split, split.view)
        noisy = add_label_noise(whole, 0.4, seed=0).train.labels
        counts = (labels * 5 + noisy).bincount(minlength=25).view(5, 5).double()
        assert (counts.diagonal() / 20_000 - 0.6).abs().max() < 4 * (0.24 / 20_000) ** 0.5
        others = counts[~torch.eye(5, dtype=torch.bool)]
        assert abs(((others - 2000) ** 2 / 2000).sum() - 19) < 4 * 38**0.5

    @pytest.mark.parametrize(
        ("name", "options", "message"),
        [
            *(("digits", {"val_fraction": part}, "val_fraction=") for part in (-0.1, 1.0, 1e-9, 0.99999, float("nan"))),
            *(("digits", {"num_classes": number}, "num_classes=.*2 to 10") for number in (0, 1, 11)),
            *(("digits", {"per_class": number}, "per_class=.*class '") for number in (0, 1000)),
            ("digits", {"noise": 1.0}, "noise=1.0: "),
            ("digits", {"image_size": 64}, "image_size=64: .*take fewer pixels"),
            ("digits", {"root": "elsewhere"}, "data.root=... out"),
            ("folder", {"root": "somewhere", "download": True}, "download=true: 'folder' cannot be downloaded"),
            ("digits", {"label": "kind"}, "label=kind: 'digits' has no such option"),
            ("cifar1000", {}, r"data 'cifar1000' is unknown; did you mean cifar100\?.*cifar100, digits"),
        ],
    )
    def test_what_cannot_be_met_is_refused_in_one_line(self, name: str, options: dict, message: str):
        with pytest.raises(PskdError, match=message) as caught:
            data.load(name, **options)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("names", "title"),
    [
        (registry.data, {"cifar100": "CIFAR-100", "imagenet": "ImageNet", "digits": None, "no_such": None}),
        (registry.scenes, {"digits": "digit scenes", "voc": "PASCAL VOC"}),
        (registry.texts, {"multi30k": "Multi30k", "files": None}),
    ],
)
def test_published_sets_have_titles_for_reports(names: registry.Registry, title: dict[str, str | None]):
    assert {name: names.title(name) for name in title} == title


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("cifar10", "cifar-10-batches-py/data_batch_1, data_batch_1 and cifar-10-python.tar.gz"),
        ("cifar100", "cifar-100-python/train, train and cifar-100-python.tar.gz"),
        ("fashion_mnist", "train-images-idx3-ubyte.gz, there and in FashionMNIST/raw, FashionMNIST, raw"),
    ],
)
def test_a_missing_set_tells_what_to_do(tmp_path: Path, name: str, layout: str):
    with pytest.raises(PskdError, match=rf"{layout}\).*data\.root=.*data\.download=true") as caught:
        data.load(name, root=tmp_path)
    assert "\n" not in str(caught.value)
    with pytest.raises(PskdError, match=r"needs data\.root="):
        data.load(name)


def test_a_damaged_cifar_file_is_never_unpickled(tmp_path: Path):
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    (tmp_path / "harmed").touch()
    for name in ("train", "test", "meta"):
        (folder / name).write_bytes(b"cpathlib\nPath\n(V" + str(tmp_path / "harmed").encode() + b"\ntR.")
    with pytest.raises(PskdError, match="incomplete or damaged"):
        data.load("cifar100", root=tmp_path)


def test_cifar10_in_its_published_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from torchvision.datasets import CIFAR10

    folder = tmp_path / CIFAR10.base_folder
    folder.mkdir()
    random = np.random.default_rng(0)

    def write(name: str, content: dict) -> list[str]:
        raw = pickle.dumps(content)
        (folder / name).write_bytes(raw)
        return [name, hashlib.md5(raw).hexdigest()]

    def batch() -> dict:
        return {"data": random.integers(0, 256, (20, 3072), dtype=np.uint8), "labels": [i % 10 for i in range(20)]}

    batches = [batch() for _ in range(6)]
    monkeypatch.setattr(CIFAR10, "train_list", [write(f"data_batch_{i}", batches[i]) for i in range(1, 6)])
    monkeypatch.setattr(CIFAR10, "test_list", [write("test_batch", batches[0])])
    meta = write("batches.meta", {"label_names": [f"class {i}" for i in range(10)]})
    monkeypatch.setattr(CIFAR10, "meta", {"filename": meta[0], "key": "label_names", "md5": meta[1]})

    cifar = data.load("cifar10", root=tmp_path, download=True)  # nothing is missing, nothing is fetched
    assert cifar.classes[3] == "class 3"
    assert (len(cifar.train), len(cifar.test)) == (100, 20)
    assert torch.equal(cifar.test.images, torch.from_numpy(batches[0]["data"]).view(20, 3, 32, 32))
    assert cifar.test.images.is_contiguous()
    assert cifar.test.labels.tolist() == batches[0]["labels"]
    assert cifar.view.mean == (0.4914, 0.4822, 0.4465)
    assert cifar.view.std == (0.2470, 0.2435, 0.2616)

    packed = tmp_path / "packed"
    packed.mkdir()
    with tarfile.open(packed / CIFAR10.filename, "w:gz") as archive:
        archive.add(folder, CIFAR10.base_folder)
    for root in (folder, packed, packed / CIFAR10.filename):
        assert data.load("cifar10", root=root).train.fingerprint == cifar.train.fingerprint
    assert [file.name for file in packed.iterdir()] == [CIFAR10.filename]


def write_fashion(folder: Path) -> np.ndarray:
    """Thirty training images, which are returned, and ten test images in the published files."""
    images = np.random.default_rng(0).integers(0, 256, (30, 28, 28), dtype=np.uint8)
    labels = np.arange(30, dtype=np.uint8) % 10

    def idx(array: np.ndarray) -> bytes:
        return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes() + array.tobytes()

    for part, count in (("train", 30), ("t10k", 10)):
        (folder / f"{part}-images-idx3-ubyte").write_bytes(idx(images[:count]))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(idx(labels[:count]))
    return images


def test_workers_of_a_study_download_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four processes and a slow server: files are asked for as by one alone, and all have the data."""
    asked = []

    class Slow(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            time.sleep(0.2)
            super().do_GET()

        def log_message(self, *words: object) -> None:
            pass

    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    write_fashion(there)
    resources = []
    for file in sorted(there.iterdir()):
        packed = gzip.compress(file.read_bytes())
        (there / f"{file.name}.gz").write_bytes(packed)
        resources.append((f"{file.name}.gz", hashlib.md5(packed).hexdigest()))
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Slow, directory=str(there))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(FashionMNIST, "mirrors", [f"http://127.0.0.1:{server.server_port}/"])
        monkeypatch.setattr(FashionMNIST, "resources", resources)
        data.load("fashion_mnist", root=tmp_path / "alone", download=True)
        by_one = sorted(asked)
        several = [in_child(lambda: data.load("fashion_mnist", root=here, download=True)) for _ in range(4)]
        assert [exit_code(child) for child in several] == [0] * 4
        server.shutdown()
    assert sorted(asked) == sorted(2 * by_one)


def test_fashion_mnist_in_its_published_layout(tmp_path: Path):
    raw = tmp_path / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    images = write_fashion(raw)
    fashion = data.load("fashion_mnist", root=tmp_path)
    assert len(fashion.classes) == 10
    assert torch.equal(fashion.train.images[:, 0], torch.from_numpy(images))
    assert fashion.test.labels.tolist() == list(range(10))
    assert fashion.test.labels.dtype == torch.int64
    assert abs(fashion.view.mean[0] - images.mean() / 255) < 1e-9
    assert abs(fashion.view.std[0] - images.std() / 255) < 1e-9

    packed = tmp_path / "packed"
    packed.mkdir()
    for file in raw.iterdir():
        (packed / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
    for root in (raw, tmp_path / "FashionMNIST", packed):
        assert data.load("fashion_mnist", root=root).train.fingerprint == fashion.train.fingerprint
    shutil.copy(packed / "t10k-labels-idx1-ubyte.gz", packed / "train-labels-idx1-ubyte.gz")
    with pytest.raises(PskdError, match="the train files are not images and a label for each"):
        data.load("fashion_mnist", root=packed)

    whole = (raw / "train-images-idx3-ubyte").read_bytes()
    (raw / "train-images-idx3-ubyte").write_bytes(whole[:5000])
    with pytest.raises(PskdError, match=r"fashion_mnist.*train-images-idx3-ubyte"):
        data.load("fashion_mnist", root=tmp_path)


def test_the_real_cifar100(real_data: Path):
    cifar = data.load("cifar100", root=real_data, val_fraction=0.1, num_classes=20)
    assert cifar.classes[:3] == ("apple", "aquarium_fish", "baby")
    assert (len(cifar.train), len(cifar.val), len(cifar.test)) == (9000, 1000, 2000)
    assert cifar.test.labels.bincount().tolist() == [100] * 20
    inputs = next(cifar.test.batches([torch.arange(2000)])).inputs
    assert inputs.shape == (2000, 3, 32, 32)
    assert inputs.mean().abs() < 0.5


def test_published_images_can_be_made_smaller():
    whole, half = data.load("digits"), data.load("digits", image_size=4)
    assert half.view.size == (4, 4)
    means = whole.test.images.double().unflatten(3, (4, 2)).unflatten(2, (4, 2)).mean((3, 5))
    assert (half.test.images - means).abs().max() <= 0.5
    assert half.train.labels.equal(whole.train.labels)
