"""The moving mean of weights, the early end, and weights of classes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers import metrics_of, small
from torch import nn

from pskd.errors import PskdError
from pskd.workbench.config.base import TrainConfig
from pskd.workbench.runs.group import Group
from pskd.workbench.tasks.classification import Classification
from pskd.workbench.train import build
from pskd.workbench.train.loop import train


def test_the_mean_moves_as_it_is_written() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).double()
    average = build.build_average(model, TrainConfig(ema=0.9))
    assert average is not None
    expected: dict[str, torch.Tensor] = {}
    for done in range(150):
        with torch.no_grad():
            for value in model.state_dict().values():
                value.copy_(torch.randn(value.shape) if value.is_floating_point() else torch.tensor(done))
        average.update_parameters(model)
        decay = min(0.9, (1 + done) / (10 + done))
        for name, value in model.state_dict().items():
            before = expected.get(name, value)
            expected[name] = decay * before + (1 - decay) * value if value.is_floating_point() else value.clone()
    for name, value in average.module.state_dict().items():
        assert torch.allclose(value, expected[name]), name


def test_a_run_keeps_and_evaluates_the_mean(tmp_path: Path) -> None:
    result = train(small("train.ema=0.99", "epochs=2"), tmp_path / "run")
    last = metrics_of(tmp_path / "run")[-1]["test"]
    assert result["nll"] == last["nll"]
    plain = train(small("epochs=2"), tmp_path / "plain")
    assert plain["nll"] != result["nll"]
    assert metrics_of(tmp_path / "plain")[-1]["train_loss"] == metrics_of(tmp_path / "run")[-1]["train_loss"]
    with pytest.raises(PskdError, match="two ways to average"):
        small("train.ema=0.9", "train.average=2")


def test_a_training_without_progress_ends(tmp_path: Path) -> None:
    with pytest.raises(PskdError, match=r"train\.patience needs a validation split"):
        train(small("train.patience=2"), tmp_path / "none")
    words = ("data.val_fraction=0.2", "train.patience=2", "epochs=9", "optim.lr=1e-9", "augment.crop=none")
    result = train(small(*words), tmp_path / "run")
    best = result["best"]["epoch"]
    assert result["epoch"] == best + 2 < 9
    assert [record["epoch"] for record in metrics_of(tmp_path / "run")] == list(range(1, best + 3))


def test_balanced_class_weights(tmp_path: Path) -> None:
    assert torch.allclose(build.balanced_weights(torch.tensor([30, 10])), torch.tensor([2 / 3, 2.0]))
    config = small("data.noise=0.3", "method.weight=balanced", "epochs=1")
    task = Classification(config)
    made = build.build_method(config, task, task.model(), 7, tmp_path, Group())
    assert made.weight is not None
    assert torch.allclose(made.weight[task.data.train.labels].mean(), torch.tensor(1.0))
    train(config, tmp_path / "run")
    assert "weight: balanced" in (tmp_path / "run" / "config.yaml").read_text()
