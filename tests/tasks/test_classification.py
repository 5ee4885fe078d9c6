"""Every method with every mix, as the tables combine them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import metrics_of, small

from pskd.errors import PskdError
from pskd.methods.hard import Hard
from pskd.plan import epoch_plan
from pskd.workbench.runs.group import Group
from pskd.workbench.tasks.classification import Classification
from pskd.workbench.train import build
from pskd.workbench.train.loop import train

METHODS = ("hard", "label_smoothing", "cs_kd", "tf_kd", "ps_kd")
MIXES = ("none", "cutout", "cutmix", "mixup")


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("teacher") / "run"
    train(small("method=hard", "epochs=1"), out)
    return out


def make_task(*words: str) -> Classification:
    """A task whose method was checked, as in a training."""
    config = small(*words)
    task = Classification(config)  # type: ignore[arg-type]
    task.check_method(build.build_method(config, task, task.model(), 10, Path(), Group()))
    return task


def settings(method: str, mix: str, teacher: Path) -> tuple[str, ...]:
    words = (f"method={method}", f"augment.mix={mix}", "augment.hole=3", "epochs=1", "data.per_class=10")
    return (*words, f"method.teacher={teacher}") if method == "tf_kd" else words


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("method", METHODS)
def test_every_combination_trains(method: str, mix: str, teacher: Path, tmp_path: Path) -> None:
    result = train(small(*settings(method, mix, teacher)), tmp_path / "run")
    assert np.isfinite(result["nll"])
    assert np.isfinite(metrics_of(tmp_path / "run")[0]["train_loss"])


@pytest.mark.parametrize("method", ["ps_kd", "cs_kd"])
@pytest.mark.parametrize("mix", ["cutout", "cutmix", "mixup"])
def test_half_is_distilled_and_half_is_mixed(method: str, mix: str) -> None:
    task = make_task(f"method={method}", f"augment.mix={mix}", "augment.hole=3", "batch_size=200")
    plain = make_task(f"method={method}", "batch_size=200")
    plan = epoch_plan(200, 200, 1, seed=0, epoch=1)
    (batch,) = task.batches(plan, 1, torch.device("cpu"))
    (before,) = plain.batches(plan, 1, torch.device("cpu"))
    assert batch.distilled is not None
    assert 70 <= int(batch.distilled.sum()) <= 130
    assert torch.equal(batch.inputs[batch.distilled], before.inputs[batch.distilled])
    changed = (batch.inputs != before.inputs).flatten(1).any(1)
    assert changed[~batch.distilled].float().mean() > 0.8
    if mix != "cutout":
        _, _, lam = batch.targets
        assert bool((lam[batch.distilled] == 1).all())


@pytest.mark.parametrize("method", ["hard", "label_smoothing", "tf_kd"])
def test_the_others_mix_whole_batches(method: str, teacher: Path) -> None:
    words = [word for word in settings(method, "cutmix", teacher) if "per_class" not in word]
    task = make_task(*words, "batch_size=8")
    plan = epoch_plan(200, 8, 1, seed=0, epoch=0)
    mixed = [bool((batch.targets[2] < 1).any()) for batch in task.batches(plan, 0, torch.device("cpu"))]
    assert 5 <= sum(mixed) <= 20  # of 25, each with probability 0.5
    assert all(batch.distilled is None for batch in task.batches(plan, 0, torch.device("cpu")))


def test_cs_kd_partners_are_of_the_same_class() -> None:
    task = make_task("method=cs_kd", "augment.crop=none")
    plan = epoch_plan(200, 64, 1, seed=0, epoch=3)
    images = task.data.view.normalize(task.data.train.images)
    for batch in task.batches(plan, 3, torch.device("cpu"), {"partner_logits"}):
        which = (batch.partner[:, None] == images[None]).flatten(2).all(2).float().argmax(1)
        assert torch.equal(task.data.train.labels[which], batch.targets)
        assert not bool((which == batch.index).any())


def test_teachers_that_cannot_teach(teacher: Path, tmp_path: Path) -> None:
    for words, message in (
        (("method=tf_kd",), "method.teacher is missing"),
        (("method=tf_kd", f"method.teacher={tmp_path}"), "is not a run folder"),
        (("method=tf_kd", f"method.teacher={teacher}", "data.num_classes=5"), r"10 classes, here 5"),
    ):
        with pytest.raises(PskdError, match=message):
            make_task(*words)


def test_wrong_settings_are_named_before_training(tmp_path: Path) -> None:
    for words, message in (
        (("augment.mix=cutout", "augment.hole=9"), "augment.hole=9 is larger than the images"),
        (("method=tf_kd", "method.variant=reg", "method.a=0.05"), r"a must lie in \(1/K, 1\), here K = 10, got 0.05"),
    ):
        with pytest.raises(PskdError, match=message):
            train(small(*words), tmp_path / words[0])


@pytest.mark.parametrize("method", ["cs_kd", "tf_kd"])
def test_same_seed_same_run(method: str, teacher: Path, tmp_path: Path) -> None:
    for number in "12":
        train(small(*settings(method, "cutmix", teacher)), tmp_path / number)
    assert metrics_of(tmp_path / "1") == metrics_of(tmp_path / "2")


def test_any_method_gets_the_logits_for_its_last_view(tmp_path: Path) -> None:
    """With gradient, by a need and a property, not by its name."""
    from pskd.workbench.registry import register_method

    @register_method("mine:AgreeWithLast")
    class AgreeWithLast(Hard):
        needs = frozenset({"view", "last_logits"})
        last_view: torch.Tensor | None = None

        def loss(self, output, targets, *, view, last_logits, distilled=None):  # type: ignore[no-untyped-def, override]
            assert (last_logits is None) == (self.last_view is None)
            assert last_logits is None or (last_logits.requires_grad and len(last_logits) == len(self.last_view))
            self.last_view = view
            return super().loss(output, targets, distilled=distilled)

    assert np.isfinite(train(small("method=mine:AgreeWithLast", "epochs=1"), tmp_path / "run")["nll"])
