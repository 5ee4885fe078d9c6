"""Every method in a bare loop and in the workbench: settings, resume to the bit, mixes, wrong use."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch
from helpers import metrics_of, small
from torch import Tensor, nn

from pskd.errors import PskdError
from pskd.methods import Method
from pskd.workbench.config.methods import TrainingInfo, make_method
from pskd.workbench.train.loop import train

NEW = ["crl", "disturb_label", "elr", "focal", "maxsup", "mean_teacher", "ols", "sat", "temporal_ensembling", "zipf_ls"]
N, K = 12, 5


def made(name: str, model: nn.Module) -> Method:
    training = TrainingInfo(
        epochs=4, num_classes=K, num_samples=N, steps_per_epoch=2, model=model, fingerprint=None, path=None, seed=3
    )
    return make_method(name, training, {})


def trained(name: str, stop: tuple[int, int] | None) -> tuple[Tensor, list[float]]:
    """Four epochs of two steps of SGD; the method is saved and made anew before the step ``stop``."""
    torch.manual_seed(0)
    model = nn.Linear(3, K)
    x, y, losses = torch.randn(N, 3), torch.randint(K, (N,)), []
    method = made(name, model)
    for epoch in range(4):
        method.start_epoch(epoch)
        for step, index in enumerate(torch.arange(N).split(6)):
            if (epoch, step) == stop:
                state = copy.deepcopy(method.state_dict())
                method = made(name, model)
                method.load_state_dict(state)
                method.start_epoch(epoch)
            loss = method(model(x[index]), y[index], index=index, inputs=x[index])
            model.zero_grad()
            loss.backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    parameter -= 0.5 * parameter.grad
            losses.append(float(loss.detach()))
    return model.weight.detach(), losses


@pytest.mark.parametrize("name", NEW)
def test_a_bare_loop_resumes_to_the_bit(name: str) -> None:
    weights, losses = trained(name, None)
    for stop in ((2, 1), (3, 0)):
        again, repeated = trained(name, stop)
        assert torch.equal(weights, again)
        assert losses == repeated


@pytest.mark.parametrize("name", sorted({"elr", "maxsup", "ols", "sat", "crl"}))
def test_wrong_use_is_said_in_a_line(name: str) -> None:
    model = nn.Linear(3, K)
    method = made(name, model)
    logits, labels, index = model(torch.randn(2, 3)), torch.tensor([0, 1]), torch.arange(2)
    with pytest.raises(PskdError, match="call start_epoch"):
        method(logits, labels, index=index)
    method.start_epoch(0)
    with pytest.raises(PskdError, match=r"start_epoch\(2\) cannot follow epoch 0"):
        method.start_epoch(2)
    with pytest.raises(PskdError, match="it is not that of"):
        method.load_state_dict({})
    if name != "maxsup":
        with pytest.raises(PskdError, match="logits have no gradient"):
            method(logits.detach(), labels, index=index)


@pytest.mark.parametrize("name", [*NEW, "byot", "ddgsd", "dlb"])
def test_the_workbench_trains_it_with_a_mix(name: str, tmp_path: Path) -> None:
    train(small(f"method={name}", "augment.mix=cutmix", "epochs=2"), tmp_path / "run")
    assert all(math.isfinite(record["train_loss"]) for record in metrics_of(tmp_path / "run"))


@pytest.mark.parametrize("name", ["byot", "crl", "dlb", "mean_teacher", "ols", "ps_kd method.alpha=auto"])
def test_the_workbench_resumes_it_to_the_bit(name: str, tmp_path: Path) -> None:
    """Heads, a bank, a last batch, a snapshot, a state of its own; in the middle of an epoch of seven steps."""
    config = small(*f"method={name}".split(), "train.save_every=10steps")
    train(config, tmp_path / "whole")

    class Enough(Exception):
        pass

    def stop(record: dict[str, object]) -> None:
        if record["epoch"] == 2:
            raise Enough

    with pytest.raises(Enough):
        train(config, tmp_path / "broken", after_epoch=stop)
    train(None, tmp_path / "broken", resume=True)
    assert metrics_of(tmp_path / "broken") == metrics_of(tmp_path / "whole")
