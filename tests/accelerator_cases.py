"""A step never waits for an accelerator, has few kernels, and makes of it what it makes on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from accelerator import DEVICE, LOG, NAME, OnDevice, simulated
from banks import stored
from torch import Tensor, nn

import pskd
from pskd.errors import PskdError

N, K, B, EPOCHS = 48, 20, 8, 3

BANKS: dict[str, dict[str, Any]] = {
    "dense": {},
    "top-k": {"form": "topk", "k": 4},
    "momentum": {"momentum": 0.5},
    "float32": {"dtype": torch.float32},
}


def make_bank(device: str, **settings: Any) -> pskd.PredictionBank:
    return pskd.PredictionBank(N, K, device=device, **settings)


def ps_kd(alpha: Any = 0.8, **bank: Any) -> Callable[[nn.Module, str], pskd.Method]:
    return lambda model, device: pskd.PSKD(EPOCHS, alpha, memory=make_bank(device, **bank))


METHODS: dict[str, Callable[[nn.Module, str], pskd.Method]] = {
    "hard": lambda model, device: pskd.Hard(),
    "label_smoothing": lambda model, device: pskd.LabelSmoothing(),
    **{f"ps_kd {name}": ps_kd(**settings) for name, settings in BANKS.items()},
    "ps_kd auto": ps_kd("auto"),
    "ps_kd partners": lambda model, device: pskd.PSKD(EPOCHS, memory=make_bank(device), partners=0.5),
    "ps_kd weights": lambda model, device: pskd.PSKD(EPOCHS, memory=make_bank(device), weight=[1.0] * K),
    "ps_kd snapshot": lambda model, device: pskd.PSKD(EPOCHS, memory=pskd.Snapshot(model)),
    "ps_kd ema": lambda model, device: pskd.PSKD(EPOCHS, memory=pskd.Snapshot(model, ema=0.9)),
    "cs_kd": lambda model, device: pskd.CSKD(),
    "tf_kd self": lambda model, device: pskd.TFKD(),
    "tf_kd reg": lambda model, device: pskd.TFKD("reg"),
    "crl": lambda model, device: pskd.CRL(
        EPOCHS, memory=pskd.PredictionBank(N, 3, dtype=torch.float32, max_age=None, device=device)
    ),
    "elr": lambda model, device: pskd.ELR(EPOCHS, memory=make_bank(device)),
    "sat": lambda model, device: pskd.SAT(EPOCHS, warmup=0.0, memory=make_bank(device)),
    "temporal_ensembling": lambda model, device: pskd.TemporalEnsembling(EPOCHS, memory=make_bank(device)),
    "mean_teacher": lambda model, device: pskd.MeanTeacher(EPOCHS, memory=pskd.Snapshot(model, ema=0.9)),
    "ols": lambda model, device: pskd.OLS(EPOCHS, K),
    "zipf_ls": lambda model, device: pskd.ZipfLS(),
    "maxsup": lambda model, device: pskd.MaxSup(EPOCHS),
    "focal": lambda model, device: pskd.Focal(),
    "disturb_label": lambda model, device: pskd.DisturbLabel(EPOCHS, 0.5),
}


def net(device: torch.device) -> nn.Module:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, K))
    if device == DEVICE:
        for layer in model:
            for name, parameter in layer._parameters.items():
                if parameter is not None:
                    layer._parameters[name] = nn.Parameter(OnDevice(parameter.detach().clone()))
    return model


def trained(
    make: Callable[[nn.Module, str], pskd.Method], device: torch.device, bank: str, index_here: bool
) -> tuple[list[Tensor], pskd.Method, list[tuple[int, list[str]]]]:
    """Losses, the method, and kernels and waits of each step."""
    model, order = net(device), torch.Generator().manual_seed(3)
    optimizer, method = torch.optim.SGD(model.parameters(), 0.5), make(model, bank)
    draw = torch.Generator().manual_seed(0)
    images, labels = torch.randn(N, 6, generator=draw), torch.randint(K, (N,), generator=draw)
    losses, steps = [], []
    for epoch in range(EPOCHS):
        method.start_epoch(epoch)
        for index in torch.randperm(N, generator=order).split(B):
            x, y = images[index].to(device, non_blocking=True), labels[index].to(device, non_blocking=True)
            others = images[index.flip(0)].to(device, non_blocking=True)
            logits = model(x)
            with torch.no_grad():
                fixed = model(others)
            LOG.new_step()
            given = index.to(device, non_blocking=True) if index_here else index
            loss = method(logits, y, index=given, inputs=x, partner_logits=fixed, teacher_logits=fixed)
            loss.backward()
            steps.append((sum(LOG.kernels.values()), list(LOG.waits)))
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
    method.settle()
    return [loss.cpu() for loss in losses], method, steps


@pytest.mark.parametrize("index_here", [False, True], ids=["index on the host", "index on the device"])
@pytest.mark.parametrize("bank", ["cpu", f"{NAME}:0"])
@pytest.mark.parametrize("name", METHODS)
def test_no_step_waits(name: str, bank: str, index_here: bool) -> None:
    if "PredictionBank" not in repr(METHODS[name](net(torch.device("cpu")), "cpu")) and (bank != "cpu" or index_here):
        pytest.skip("it has no bank")
    with simulated():
        losses, method, steps = trained(METHODS[name], DEVICE, bank, index_here)
        state = method.state_dict()
    wanted, plain, _ = trained(METHODS[name], torch.device("cpu"), "cpu", False)
    torch.testing.assert_close(losses, wanted, rtol=1e-4, atol=1e-5)
    allowed = 1 if index_here and bank == "cpu" else 0  # which rows to read is known on the device alone
    waits = {wait for _, found in steps for wait in found}
    assert max(len(found) for _, found in steps) <= allowed, waits
    if isinstance(method.memory, pskd.PredictionBank):
        with simulated():
            there = {key: part.cpu() if isinstance(part, Tensor) else part for key, part in state["memory"].items()}
        torch.testing.assert_close(stored(there), stored(plain.memory.state_dict()), rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize(("name", "most"), [("hard", 25), ("ps_kd dense", 60), ("ps_kd top-k", 72)])
def test_a_step_has_few_kernels(name: str, most: int) -> None:
    with simulated():
        _, _, steps = trained(METHODS[name], DEVICE, f"{NAME}:0", True)
    # F.cross_entropy has 5; those of the model's own backward pass come on top.
    model = 13
    assert steps[-1][0] - model <= most


def test_what_is_wrong_is_raised_one_step_later() -> None:
    with simulated():
        model = net(DEVICE)
        method = pskd.PSKD(EPOCHS, memory=make_bank(f"{NAME}:0"))
        method.start_epoch(0)
        x, index = torch.randn(4, 6).to(DEVICE), torch.arange(4).to(DEVICE)
        method(model(x), torch.full((4,), K).to(DEVICE), index=index).backward()
        LOG.new_step()
        with pytest.raises(
            PskdError, match=r"targets: 4 class indices lie outside 0..19 .* \(found in the step before\)"
        ):
            method(model(x), torch.zeros(4, dtype=torch.int64).to(DEVICE), index=index)
