"""A model that is spread over two processes learns what it learns in one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from helpers import metrics_of, small
from processes import exit_code, in_children
from safetensors.torch import load_file
from torch import nn

from pskd.errors import PskdError
from pskd.workbench import models
from pskd.workbench.config import Config, OptimConfig, resolve
from pskd.workbench.recipes import read_recipe
from pskd.workbench.runs import sharding
from pskd.workbench.train import build
from pskd.workbench.train.loop import train
from pskd.workbench.train.state import check_optimizer


def on_two(work: Callable[[], object]) -> None:
    assert [exit_code(child) for child in in_children(work, 2)] == [0, 0]


def assert_close(one: Path, other: Path) -> None:
    """But for the order of sums: a spread model's weights are never channels-last."""
    expected, actual = load_file(one / "model.safetensors"), load_file(other / "model.safetensors")
    assert expected.keys() == actual.keys()
    for name, weights in expected.items():
        torch.testing.assert_close(actual[name], weights, rtol=1e-4, atol=1e-5)
    losses = [[record["train_loss"] for record in metrics_of(run)] for run in (one, other)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_a_spread_model_learns_the_same(tmp_path: Path) -> None:
    words = ["method=cs_kd", "train.accumulate=2", "train.clip_norm=0.5", "optim.name=adamw", "optim.lr=0.001"]
    # Without channels-last, and slowly: AdamW makes much of the last bits, in which some machines differ.
    on_two(lambda: train(small(*words, "train.channels_last=false"), tmp_path / "copied"))
    on_two(lambda: train(small(*words, "train.shard=true"), tmp_path / "spread"))
    assert_close(tmp_path / "copied", tmp_path / "spread")


def test_a_state_leaves_an_optimizer_its_own_way_of_computing() -> None:
    """Checkpoints of older versions, and of other devices, were not written by the fused AdamW."""
    made: dict[bool, Any] = {}
    for fused in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(5, 3)
        settings = OptimConfig(name="adamw", lr=0.1)
        made[fused] = model, build.build_optimizer(model, settings, nn.Identity, fused=fused)

    def step(fused: bool) -> None:
        model, optimizer = made[fused]
        optimizer.zero_grad()
        model(torch.linspace(-1, 1, 20).view(4, 5)).square().sum().backward()
        optimizer.step()

    for _ in range(3):
        step(False)
    (plain, before), (model, optimizer) = made[False], made[True]
    stored = copy.deepcopy(before.state_dict())
    assert stored["param_groups"][0]["fused"] is None
    check_optimizer(optimizer.state_dict(), stored)
    sharding.load_optimizer(optimizer, stored)
    model.load_state_dict(plain.state_dict())
    assert optimizer.param_groups[0]["fused"] is True
    for _ in range(3):
        step(False)
        step(True)
    torch.testing.assert_close(model.state_dict(), plain.state_dict(), rtol=1e-5, atol=1e-6)


def test_a_run_goes_on_spread_another_way(tmp_path: Path) -> None:
    """The second of three epochs on two processes, with a copy of the model in each or spread over them."""
    words = ("data.val_fraction=0.1", "train.save_every=1 epoch")

    def until(epoch: int, out: Path, *more: str) -> None:
        def stop(record: dict[str, Any]) -> None:
            if record["epoch"] == epoch:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            train(small(*words, *more), out, resume=True, after_epoch=stop)

    for out, shard in ((tmp_path / "copied", "false"), (tmp_path / "spread", "true")):
        until(1, out)
        on_two(partial(until, 2, out, f"train.shard={shard}"))
        train(small(*words), out, resume=True)
    assert_close(tmp_path / "copied", tmp_path / "spread")


def test_a_process_keeps_its_part(tmp_path: Path) -> None:
    def work() -> None:
        dist.init_process_group("gloo")
        model = models.create("preact_resnet18", 10, width=8)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        total = sum(parameter.numel() for parameter in model.parameters())
        sharding.shard(model, torch.device("cpu"), 2)
        assert sharding.is_spread(model)
        assert sum(parameter.to_local().numel() for parameter in model.parameters()) <= 0.51 * total  # type: ignore[operator]
        after = sharding.whole(model.state_dict())
        assert all(torch.equal(before[name], after[name]) for name in before)
        changed = {name: value + 1 for name, value in before.items()}
        sharding.load_model(model, changed)
        assert all(torch.equal(changed[name], value) for name, value in sharding.whole(model.state_dict()).items())

    on_two(work)


def test_a_spread_detector(tmp_path: Path) -> None:
    words = ["model.backbone=resnet8", "data.train_images=6", "data.test_images=3", "epochs=1", "batch_size=2"]
    config = resolve(read_recipe("detection/digits"), [*words, "data.workers=0", "train.shard=true"])
    on_two(lambda: train(config, tmp_path / "run"))
    assert (tmp_path / "run" / "result.json").is_file()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (small("train.shard=true", "method.memory=snapshot"), "take method.memory=bank"),
        (
            small("train.shard=true", "train.average=2"),
            "train.average, train.ema and train.compile need the whole model",
        ),
        (small("train.shard=true", "train.precision=fp16"), r"take train\.precision=bf16"),
        (resolve(read_recipe("translation/numbers"), ["train.shard=true"]), "whole output weights"),
    ],
)
def test_what_needs_the_whole_model_is_refused(config: Config, message: str, tmp_path: Path) -> None:
    with pytest.raises(PskdError, match=message):
        train(config, tmp_path / "run")


def test_the_other_way_to_ask_for_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(PskdError, match=r"set train\.shard=true"):
        train(small(), tmp_path / "run")
