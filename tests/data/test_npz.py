from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from pskd.errors import PskdError
from pskd.workbench import data


def arrays(*shape: int) -> dict[str, np.ndarray]:
    """12 training, 4 validation and 6 test images of 3 classes in the MedMNIST layout."""
    random = np.random.default_rng(0)
    content = {}
    for split, count in (("train", 12), ("val", 4), ("test", 6)):
        content[f"{split}_images"] = random.integers(0, 256, (count, *shape), dtype=np.uint8)
        content[f"{split}_labels"] = (np.arange(count) % 3).astype(np.uint8)[:, None]
    return content


def save(folder: Path, content: dict[str, np.ndarray]) -> Path:
    np.savez_compressed(folder / "set.npz", **content)
    return folder / "set.npz"


@pytest.mark.parametrize(("shape", "channels"), [((28, 28), 1), ((28, 20, 1), 1), ((28, 28, 3), 3)])
def test_the_medmnist_layout(tmp_path: Path, shape: tuple[int, ...], channels: int):
    content = arrays(*shape)
    content["test_labels"] = content["test_labels"][:, 0].astype(np.int32)
    npz = data.load("npz", root=save(tmp_path, content))
    assert npz.classes == ("0", "1", "2")
    assert (len(npz.train), len(npz.val), len(npz.test)) == (12, 4, 6)
    assert npz.test.labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert npz.view.channels == channels
    assert npz.view.size == shape[:2]
    pixels = torch.from_numpy(content["train_images"]).view(12, *shape[:2], channels)
    assert torch.equal(npz.train.images.permute(0, 2, 3, 1), pixels)
    assert np.allclose(npz.view.mean, pixels.float().mean((0, 1, 2)) / 255)
    assert np.allclose(npz.view.std, pixels.float().std((0, 1, 2), correction=0) / 255)


def test_classes_may_have_names(tmp_path: Path):
    content = arrays(8, 8)
    names = np.array(["cat", "dog", "owl"])
    assert data.load("npz", root=save(tmp_path, {**content, "classes": names})).classes == ("cat", "dog", "owl")
    for wrong in (names[:2], names[[0, 1, 1]], names[None]):
        with pytest.raises(PskdError, match="classes must be a list of different names, one for each of the 3"):
            data.load("npz", root=save(tmp_path, {**content, "classes": wrong}))


def test_without_a_validation_split_a_fraction_can_be_drawn(tmp_path: Path):
    content = arrays(8, 8)
    whole = save(tmp_path, content)
    with pytest.raises(PskdError, match="validation split of its own"):
        data.load("npz", root=whole, val_fraction=0.25)
    del content["val_images"], content["val_labels"]
    npz = data.load("npz", root=save(tmp_path, content), val_fraction=0.25)
    assert (len(npz.train), len(npz.val)) == (9, 3)


def test_a_blank_channel_is_no_division_by_zero(tmp_path: Path):
    content = arrays(8, 8, 3)
    content["train_images"][..., 1] = 7
    npz = data.load("npz", root=save(tmp_path, content))
    assert npz.view.normalize(npz.train.images).isfinite().all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_images": None}, "no array 'train_images'"),
        ({"test_labels": None}, "no array 'test_labels'"),
        ({"val_labels": None}, "no array 'val_labels'"),
        ({"train_images": np.zeros((12, 8, 8))}, "train_images is float64.*uint8"),
        ({"train_images": np.zeros((12, 8), np.uint8)}, r"train_images has shape \(12, 8\)"),
        ({"train_images": np.zeros((12, 8, 8, 8), np.uint8)}, r"train_images has shape \(12, 8, 8, 8\)"),
        ({"test_images": np.zeros((0, 8, 8), np.uint8)}, r"test_images has shape \(0, 8, 8\)"),
        ({"test_images": np.zeros((6, 8, 9), np.uint8)}, "test_images and train_images differ"),
        ({"test_images": np.zeros((6, 8, 8, 3), np.uint8)}, "test_images and train_images differ"),
        ({"train_labels": np.zeros((12, 1))}, "train_labels is float64.*integers"),
        ({"train_labels": np.zeros((12, 14), int)}, r"train_labels has shape \(12, 14\)"),
        ({"train_labels": np.zeros(11, int)}, r"train_labels has shape \(11,\)"),
        ({"train_labels": np.zeros(12, int)}, "one class only"),
        ({"train_labels": np.full(12, -1)}, "negative label -1"),
        ({"train_labels": np.arange(12) % 2 * 2}, r"class 1 of 0\.\.2 has no training image"),
        ({"test_labels": np.full(6, 3)}, r"test_labels has class 3, train_labels only 0\.\.2"),
        ({"train_labels": np.array([object()] * 12)}, "cannot read"),
    ],
)
def test_each_mistake_is_one_line(tmp_path: Path, change: dict[str, np.ndarray | None], message: str):
    content = {name: array for name, array in (arrays(8, 8) | change).items() if array is not None}
    with pytest.raises(PskdError, match=message) as caught:
        data.load("npz", root=save(tmp_path, content))
    assert "\n" not in str(caught.value)
    assert "set.npz" in str(caught.value)


def test_files_that_are_no_archives_are_refused(tmp_path: Path):
    (tmp_path / "text.npz").write_text("no archive")
    np.save(tmp_path / "single.npy", np.zeros(3))
    cut = save(tmp_path, arrays(8, 8)).read_bytes()
    (tmp_path / "cut.npz").write_bytes(cut[: len(cut) // 2])
    (tmp_path / "empty.npz").touch()
    for name in ("text.npz", "single.npy", "cut.npz", "empty.npz", "missing.npz", "."):
        with pytest.raises(PskdError, match=r"data\.root=") as caught:
            data.load("npz", root=tmp_path / name)
        assert "\n" not in str(caught.value)
