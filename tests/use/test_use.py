"""A finished run is opened from what is saved beside its weights, and from nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import pskd, small

from pskd.errors import PskdError
from pskd.workbench.config import resolve
from pskd.workbench.data import detection
from pskd.workbench.data.text import load as load_text
from pskd.workbench.recipes import read_recipe
from pskd.workbench.tasks.classification import Classification, ClassPredictor
from pskd.workbench.train.loop import train
from pskd.workbench.use import Predictor, evaluate, predict

BRIGHTNESS = {"bright": 1.0, "dark": 0.3}


def arrays(folder: Path, name: str, *, train_images: float, classes: int = 3) -> Path:
    """An npz file whose test images are always the same; its training images are darker or brighter."""
    draw = np.random.default_rng(0)
    content = {}
    for split, count, scale in (("train", 60, train_images), ("test", 30, 1.0)):
        labels = np.arange(count) % classes
        pixels = draw.normal(60 * labels[:, None, None] + 60, 40, (count, 8, 8)).clip(0, 255)
        content |= {f"{split}_images": (scale * pixels).astype(np.uint8), f"{split}_labels": labels}
    np.savez(folder / name, **content)
    return folder / name


@pytest.fixture(scope="module")
def own_data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run on arrays, and the folder they are in."""
    folder = tmp_path_factory.mktemp("own")
    file = arrays(folder, "bright.npz", train_images=1.0)
    words = [f"data.root={file}", "model=resnet8", "model.width=4", "epochs=3", "batch_size=16", "train.threads=1"]
    train(resolve(read_recipe("npz"), words, name="npz"), folder / "run")
    return folder / "run", folder


def test_the_same_test_images_score_the_same_whatever_lies_beside_them(own_data: tuple[Path, Path]) -> None:
    run, folder = own_data
    before = evaluate(run, "test")
    elsewhere = evaluate(run, "test", str(arrays(folder, "dark.npz", train_images=0.3)))
    assert elsewhere == before
    with pytest.raises(PskdError, match=r"knows 3 classes, the data has 2, such as '2' on one side only"):
        evaluate(run, "test", str(arrays(folder, "two.npz", train_images=1.0, classes=2)))


def test_data_that_is_made_here_lies_nowhere_else(
    trained: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Or the score on the run's own test set would be taken for that of the folder."""
    code, _, err = pskd(capfd, "evaluate", str(trained), "--root", str(tmp_path))
    assert (code, err.count("\n")) == (2, 1)
    assert "'digits' comes with pskd, it is not read from" in err
    with pytest.raises(PskdError, match="'digits' comes with pskd"):
        detection.load("digits", splits={}, counts={}, root=str(tmp_path))
    with pytest.raises(PskdError, match="'numbers' comes with pskd"):
        load_text("numbers", source="de", target="en", root=str(tmp_path))


def test_a_run_needs_its_teacher_only_to_be_trained(tmp_path: Path) -> None:
    train(small("method=hard", "epochs=1"), tmp_path / "teacher")
    train(small("method=tf_kd", f"method.teacher={tmp_path / 'teacher'}", "epochs=1"), tmp_path / "student")
    before = evaluate(tmp_path / "student", "test")
    shutil.rmtree(tmp_path / "teacher")
    assert evaluate(tmp_path / "student", "test") == before


def test_the_best_epoch_s_weights_can_be_used(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    result = train(small("data.val_fraction=0.2", "optim.lr=0.3", "epochs=4"), tmp_path / "run")
    assert evaluate(tmp_path / "run", "test", best=True)["nll"] == pytest.approx(result["best"]["test"]["nll"])
    assert evaluate(tmp_path / "run", "val")["nll"] == pytest.approx(result["val"]["nll"])
    train(small("epochs=1"), tmp_path / "other")
    code, out, err = pskd(capfd, "evaluate", str(tmp_path / "other"), "--best")
    assert (code, out) == (2, out)
    assert "has no best.safetensors: without a validation split no epoch is chosen" in err


def test_options_of_another_task_are_refused(trained: Path) -> None:
    for options, message in (
        (
            {"texts": ["ja"]},
            "--text is not for a run of classification; its options are --coverage, --max-risk, --top, --workers",
        ),
        ({"min_score": 0.5}, "--min-score is not for a run of classification"),
    ):
        with pytest.raises(PskdError, match=message):
            list(predict(trained, ["x.png"], **options))


def test_weights_alone_are_enough_to_predict(own_data: tuple[Path, Path], tmp_path: Path) -> None:
    from PIL import Image

    run, _ = own_data
    (tmp_path / "alone").mkdir()
    shutil.copy(run / "model.safetensors", tmp_path / "alone")
    Image.new("L", (8, 8), 90).save(tmp_path / "grey.png")
    predictor = Predictor.from_run(tmp_path / "alone")
    assert isinstance(predictor, ClassPredictor)
    assert predictor.classes == ("0", "1", "2")
    (one,), (other,) = (list(predict(place, [str(tmp_path / "grey.png")])) for place in (run, tmp_path / "alone"))
    assert one.to_dict() == other.to_dict()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("words", "evaluations"),
    [(("epochs=3",), 3), (("epochs=3", "eval.every=2"), 2), (("epochs=3", "data.val_fraction=0.2"), 4 + 1)],
)
def test_the_last_epoch_is_evaluated_once(
    words: tuple[str, ...], evaluations: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a validation split: three epochs on it, then the test set, and the best epoch's if it is another one."""
    seen: list[str] = []
    original = Classification.evaluate

    def counted(self: Classification, model: torch.nn.Module, split: str, *others: object) -> object:
        seen.append(split)
        return original(self, model, split, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(Classification, "evaluate", counted)
    result = train(small(*words), tmp_path / "run")
    if "best" in result and result["best"]["epoch"] == 3:
        evaluations -= 1
    assert len(seen) == evaluations
