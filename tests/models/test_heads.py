"""Heads for training only: shapes, the network's own answer, and what a finished run saves."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers import small
from safetensors import safe_open
from torch import nn

from pskd.errors import PskdError
from pskd.workbench import models
from pskd.workbench.models.heads import HeadedNet, HeadedOutput, without_heads
from pskd.workbench.train.loop import train


@pytest.mark.parametrize(("name", "options"), [("resnet8", {"width": 4}), ("preact_resnet18", {"width": 4})])
def test_every_stage_but_the_last_has_a_head(name: str, options: dict[str, int]) -> None:
    net = models.create(name, 7, 3, **options)
    model = HeadedNet(net)
    images = torch.randn(2, 3, 16, 16)
    output = model(images)
    assert isinstance(output, HeadedOutput)
    stages = len(net.stages)
    assert [tuple(logits.shape) for logits in output.head_logits] == [(2, 7)] * (stages - 1)
    assert len({features.shape for features in output.head_features}) == 1
    assert len(output.head_features) == stages
    torch.testing.assert_close(output.logits, net(images), rtol=1e-4, atol=1e-5)
    assert torch.equal(model.eval()(images), net.eval()(images))
    assert without_heads(model) is net
    assert without_heads(net) is net
    with pytest.raises(PskdError, match="method=byot needs a network of stages, such as model=resnet20, not Linear"):
        HeadedNet(nn.Linear(2, 2))


def test_the_saved_model_has_no_heads(tmp_path: Path) -> None:
    for method in ("byot", "hard"):
        train(small(f"method={method}", "epochs=1", "data.val_fraction=0.2"), tmp_path / method)
    names = {}
    for method in ("byot", "hard"):
        for file in ("model.safetensors", "best.safetensors"):
            with safe_open(str(tmp_path / method / file), framework="pt") as weights:
                names[method, file] = set(weights.keys())
    assert len({frozenset(found) for found in names.values()}) == 1
