"""Fine-tuning: runs that begin with the weights of another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from shutil import copytree, rmtree

import pytest
import torch
from chaos import equal
from helpers import pskd, small, unfinished
from safetensors.torch import load_file, save_file

from pskd.errors import PskdError
from pskd.workbench.tasks.classification import Classification
from pskd.workbench.train.loop import train

FIVE = "data.num_classes=5"


def test_a_run_begins_with_the_weights_of_another_and_a_new_head(
    tmp_path: Path, undisturbed: Callable[..., Path]
) -> None:
    start = undisturbed()
    config = small(FIVE, f"model.start={start}", "train.freeze=backbone", "epochs=1")
    task = Classification(config)
    assert task.data.view == Classification(small()).data.view  # that of the run it begins from
    train(config, tmp_path / "run")
    before, after = load_file(start / "model.safetensors"), load_file(tmp_path / "run" / "model.safetensors")
    assert after["fc.weight"].shape[0] == 5
    assert all(after[name].equal(before[name]) for name in before if not name.startswith("fc."))
    assert "new head for 5 classes" in (tmp_path / "run" / "log.txt").read_text()


def test_the_same_classes_keep_their_head(tmp_path: Path, undisturbed: Callable[..., Path]) -> None:
    start = undisturbed()
    same = Classification(small(f"model.start={start}"))
    known = load_file(start / "model.safetensors")
    assert same.model().state_dict()["fc.weight"].equal(known["fc.weight"])
    save_file(known, tmp_path / "plain.safetensors")
    plain = Classification(small(f"model.start={tmp_path / 'plain.safetensors'}"))
    assert plain.model().state_dict()["fc.weight"].equal(known["fc.weight"])
    for wrong, message in (
        (f"model.start={tmp_path / 'none.safetensors'}", "there is no such file"),
        (f"model.start={tmp_path}", "is not a run folder"),
        (f"model.start={start} model.width=8", "does not fit this model"),
    ):
        with pytest.raises(PskdError, match=message):
            Classification(small(*wrong.split())).model()


def test_the_backbone_can_learn_more_slowly(tmp_path: Path) -> None:
    settings = ("model.init=torch", "epochs=1", "optim.momentum=0", "optim.weight_decay=0", "batch_size=200")
    first = Classification(small(*settings))
    torch.manual_seed(0)
    first_weights = {name: value.clone() for name, value in first.model().state_dict().items()}
    changes = []
    for number, rate in enumerate(("", "optim.backbone_lr=0.01")):
        train(small(*settings, *([rate] if rate else [])), tmp_path / str(number))
        after = load_file(tmp_path / str(number) / "model.safetensors")
        changes.append({name: after[name].double() - first_weights[name].double() for name in after})
    assert changes[0]["fc.weight"].equal(changes[1]["fc.weight"])
    name = "stem.0.weight" if "stem.0.weight" in first_weights else next(iter(first_weights))
    assert torch.allclose(changes[0][name], 10 * changes[1][name], atol=1e-6)


def test_a_resumed_run_needs_no_first_weights(
    tmp_path: Path, undisturbed: Callable[..., Path], capfd: pytest.CaptureFixture[str]
) -> None:
    """And nothing is loaded because its folder names it."""
    start = copytree(undisturbed(), tmp_path / "start")
    words = (f"model.start={start}", FIVE, "train.save_every=4 steps", "epochs=2", "optim.backbone_lr=0.01")
    whole, again = tmp_path / "whole", unfinished(tmp_path / "again", small(*words))
    train(small(*words), whole)
    (start / "model.safetensors").write_bytes((whole / "model.safetensors").read_bytes())  # other weights by now
    assert pskd(capfd, "train", "--resume", "--out", str(again))[0] == 0
    assert equal(again, whole)
    rmtree(again / "checkpoints")
    for name in ("result.json", "model.safetensors", ".checkpointed"):
        (again / name).unlink(missing_ok=True)
    code, _, output = pskd(capfd, "train", "--resume", "--out", str(again))
    assert code == 2
    assert "model.start may load files or code, which a run folder may not decide" in output


def test_freezing_everything_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PskdError, match="nothing but the head is trained"):
        train(small("train.freeze=backbone", "optim.backbone_lr=0.1"), tmp_path / "run")
