"""Whole trainings on the embedded digits."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import metrics_of, pskd, small
from safetensors.torch import load_file
from torch import nn

from pskd.errors import PskdError
from pskd.methods.base import Loss, Method
from pskd.metrics import functional
from pskd.workbench.tasks.base import Shown
from pskd.workbench.tasks.classification import Classification, Prediction
from pskd.workbench.tasks.classification.task import ClassificationBatch
from pskd.workbench.train.loop import train
from pskd.workbench.use import evaluate, predict

METRICS = ("top1_error", "top5_error", "nll", "ece", "aurc", "e_aurc")


def test_a_run_folder_has_everything(undisturbed: Callable[..., Path]) -> None:
    folder = undisturbed()
    result = json.loads((folder / "result.json").read_text())
    assert {*METRICS, "seed", "settings", "versions", "seconds", "git", "parameters"} <= result.keys()
    assert [record["epoch"] for record in metrics_of(folder)] == [1, 2, 3]
    assert [record["alpha_t"] for record in metrics_of(folder)] == pytest.approx([0.8 / 3, 1.6 / 3, 0.8])
    first, second, third, *_ = (folder / "log.txt").read_text().splitlines()
    assert first.startswith("digits: 200 training, 359 test images of 8x8, 10 classes · resnet8, 4,934 parameters")
    assert second.startswith("note: alpha 0.8 in 3 epochs: PS-KD usually costs accuracy")
    assert third.startswith("epoch 1/3 ")
    stored = np.load(folder / "predictions.npz")
    probs, labels = torch.from_numpy(stored["probs"]), torch.from_numpy(stored["labels"])
    assert 100 * float(functional.top_k_error(probs, labels)) == pytest.approx(result["top1_error"])
    assert 100 * float(functional.expected_calibration_error(probs, labels)) == pytest.approx(result["ece"])
    assert not any("bank" in name for name in load_file(folder / "model.safetensors"))


def test_evaluate_gives_the_same_again(undisturbed: Callable[..., Path]) -> None:
    folder = undisturbed()
    result = json.loads((folder / "result.json").read_text())
    again = evaluate(folder, "test")
    assert {name: again[name] for name in METRICS} == pytest.approx({name: result[name] for name in METRICS}, rel=1e-5)
    with pytest.raises(PskdError, match="has no validation split"):
        evaluate(folder, "val")


def test_seeds_decide(tmp_path: Path, undisturbed: Callable[..., Path]) -> None:
    train(small(), tmp_path / "same")
    train(small("seed=1"), tmp_path / "other")
    assert metrics_of(tmp_path / "same") == metrics_of(undisturbed())
    assert metrics_of(tmp_path / "other") != metrics_of(undisturbed())


def test_it_learns(tmp_path: Path) -> None:
    result = train(small("data.per_class=null", "model.width=8", "epochs=4"), tmp_path / "run")
    assert result["top1_error"] < 15


@pytest.mark.parametrize(
    "settings",
    [
        ("train.precision=bf16", "method.memory=snapshot"),
        ("train.accumulate=3", "train.clip_norm=1.0", "optim.name=adamw"),
        ("train.channels_last=false", "optim.schedule=cosine", "optim.warmup=0.2"),
        ("train.trackers=[tensorboard]", "method=hard"),
    ],
    ids=lambda settings: settings[0],
)
def test_settings_that_change_how_it_trains(settings: tuple[str, ...], tmp_path: Path) -> None:
    result = train(small("epochs=2", *settings), tmp_path / "run")
    assert all(np.isfinite(result[name]) for name in METRICS)
    if "train.trackers=[tensorboard]" in settings:
        assert list((tmp_path / "run").rglob("events.out.tfevents*"))


def test_a_step_looks_for_nothing_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """accelerate's wrapper of an optimizer looks for a package in every step, which took 3% of a small one's time."""
    looked, after, find_spec = [], [], importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda *name: looked.append(name) or find_spec(*name))  # type: ignore[func-returns-value]
    train(small("epochs=3"), tmp_path / "run", after_epoch=lambda record: after.append(len(looked)))
    assert after[1] == after[2]


def test_there_are_no_more_threads_than_cores(tmp_path: Path) -> None:
    """A thousand need more memory for their stacks than some machines give a process."""
    before = torch.get_num_threads()
    train(small("epochs=1", "train.threads=1000"), tmp_path / "run")
    threads = torch.get_num_threads()
    torch.set_num_threads(before)
    assert threads == os.cpu_count()


def test_the_best_epoch_is_chosen_on_the_validation_split(tmp_path: Path) -> None:
    result, records = train(small("data.val_fraction=0.2", "epochs=4"), tmp_path / "run"), metrics_of(tmp_path / "run")
    by_epoch = {record["epoch"]: record["val"]["top1_error"] for record in records}
    assert by_epoch[result["best"]["epoch"]] == result["best"]["val"]["top1_error"] == min(by_epoch.values())
    assert result["val"]["top1_error"] == by_epoch[4]
    assert all("test" not in record for record in records)
    assert result["epoch"] == 4


@pytest.mark.parametrize("method", ["hard", "ps_kd"])
def test_other_data_is_refused(method: str, tmp_path: Path) -> None:
    out, words = tmp_path / "run", [f"method={method}", "train.save_every=1 epoch", "epochs=1"]
    train(small(*words), out)
    (out / "result.json").unlink()
    (out / "config.yaml").write_text(small(*words, "data.per_class=21").to_yaml())
    with pytest.raises(PskdError, match="the training data or their order, or the teacher, have changed"):
        train(None, out, resume=True)


def test_data_that_was_moved_is_found_by_a_resumed_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pixels, labels = np.zeros((40, 8, 8), np.uint8), np.arange(40) % 2
    arrays = {
        f"{split}_{part}": a for split in ("train", "test") for part, a in (("images", pixels), ("labels", labels))
    }
    np.savez(tmp_path / "here.npz", **arrays)
    here, out = tmp_path / "here.npz", tmp_path / "run"
    train(small("data=npz", f"data.root={here}", "data.per_class=null", "epochs=1", "train.save_every=1 epoch"), out)
    (out / "result.json").unlink()
    here.rename(tmp_path / "there.npz")
    resume, moved = ("train", "--resume", "--out", str(out)), f"data.root={tmp_path / 'there.npz'}"
    code, _, output = pskd(capfd, *resume)
    assert (code, str(here) in output) == (2, True)
    code, _, output = pskd(capfd, *resume, moved, "optim.lr=7")
    assert (code, "belongs to another configuration (optim.lr" in output) == (2, True)
    assert str(here) in (out / "config.yaml").read_text()
    code, _, output = pskd(capfd, *resume, moved, "train.threads=1")
    assert (code, str(here) in (out / "config.yaml").read_text()) == (0, False)


def test_a_teacher_may_move_but_not_change(tmp_path: Path) -> None:
    for seed in (0, 1):
        train(small("method=hard", f"seed={seed}", "epochs=1"), tmp_path / f"teacher-{seed}")
    words = ["method=tf_kd", "epochs=1", "train.save_every=1 epoch"]
    train(small(*words, f"method.teacher={tmp_path / 'teacher-0'}"), tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    with pytest.raises(PskdError, match="the training data or their order, or the teacher, have changed"):
        train(small(*words, f"method.teacher={tmp_path / 'teacher-1'}"), tmp_path / "run", resume=True)
    (tmp_path / "teacher-0").rename(tmp_path / "moved")
    train(small(*words, f"method.teacher={tmp_path / 'moved'}"), tmp_path / "run", resume=True)


def test_a_finished_run_is_not_run_again(undisturbed: Callable[..., Path]) -> None:
    folder = undisturbed()
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert train(None, folder, resume=True) == json.loads((folder / "result.json").read_text())
    assert (folder / "model.safetensors").stat().st_mtime_ns == before


def test_predict_continues_after_a_broken_image(tmp_path: Path, undisturbed: Callable[..., Path]) -> None:
    from PIL import Image

    modes = ("RGB", "L", "RGBA", "P", "1", "CMYK", "I;16")
    for mode in modes:
        Image.new(mode, (31, 17)).save(tmp_path / f"{mode.replace(';', '')}.tiff")
    (tmp_path / "broken.png").write_bytes(b"not an image")
    answers = list(predict(undisturbed(), sorted(map(str, tmp_path.iterdir()))))
    assert len(answers) == len(modes) + 1
    (broken,) = (answer for answer in answers if isinstance(answer, PskdError))
    assert "broken.png" in str(broken)
    for answer in answers:
        if isinstance(answer, Prediction):
            shares = [share for _, share in answer.classes]
            assert len(shares) == 5
            assert shares == sorted(shares, reverse=True)


def test_an_unavailable_device_is_named(tmp_path: Path) -> None:
    with pytest.raises(PskdError, match=r"train.device='cuda' is not available here"):
        train(small("train.device=cuda"), tmp_path / "run")
    with pytest.raises(PskdError, match=r"train.device='cuda:1': a card is chosen outside, CUDA_VISIBLE_DEVICES=1"):
        train(small("train.device=cuda:1"), tmp_path / "run")


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_step_whose_loss_is_not_finite_can_be_skipped(
    accumulate: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch with sample 7 is NaN in the second epoch: that step changes nothing and is counted."""
    loss = Classification.loss

    def spoilt(
        self: Classification, model: nn.Module, batch: ClassificationBatch, real: int, method: Method
    ) -> tuple[Loss, Shown]:
        if 7 in batch.index and method.alpha_t > 0.5:  # type: ignore[attr-defined]
            batch = batch._replace(inputs=batch.inputs * float("nan"))
        return loss(self, model, batch, real, method)

    monkeypatch.setattr(Classification, "loss", spoilt)
    settings = ("epochs=2", "method.alpha=1", f"train.accumulate={accumulate}")
    train(small("train.on_nonfinite=skip", *settings), tmp_path / "run")
    first, second = metrics_of(tmp_path / "run")
    assert "skipped" not in first
    assert 1 <= second["skipped"] <= 32
    assert np.isfinite(second["train_loss"])
    assert np.isfinite(second["test"]["nll"])  # batch statistics are good, too
    with pytest.raises(PskdError, match=r"the loss is not finite in epoch 2, step \d+, learning rate"):
        train(small(*settings), tmp_path / "other")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("train.on_nonfinite=skip", "eval.every=9"), r"in .*, 20 times in a row; none is saved: lower"),
        (
            ("train.save_every=2 steps",),
            r"in epoch \d, step \d+, learning rate 1e\+12; the last checkpoint is .*: lower",
        ),
    ],
)
def test_a_loss_that_stays_not_finite_stops_the_run(settings: tuple[str, ...], message: str, tmp_path: Path) -> None:
    """With what is needed to continue; the weights of the last checkpoint are good."""
    with pytest.raises(PskdError, match=f"the loss is not finite {message}"):
        train(small("method=hard", "optim.lr=1e12", "epochs=9", *settings), tmp_path / "run")
