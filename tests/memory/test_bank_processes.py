"""Banks of several processes: a private one is refused, and one file serves all of a host."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from processes import exit_code, in_children
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import pskd
from pskd.errors import PskdError

N, K = 24, 4


def refusal(**settings: Any) -> str:
    """What the first epoch with such a bank says; nothing where it begins."""
    bank = pskd.PredictionBank(N, K, **settings)
    try:
        bank.start_epoch(0)
    except PskdError as error:
        return str(error)
    return ""


def training(folder: Path) -> list[bool]:
    """The README's loop in one of several processes: whether all records of each batch of epochs 1 and 2 are known."""
    torch.manual_seed(0)
    train = TensorDataset(torch.randn(N, 3), torch.arange(N) % K)
    model = nn.parallel.DistributedDataParallel(nn.Linear(3, K))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    bank = pskd.PredictionBank(N, K, path=folder / "bank")
    distill = pskd.PSKD(epochs=3, memory=bank)
    sampler: DistributedSampler[Any] = DistributedSampler(train)
    seen: list[bool] = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        distill.start_epoch(epoch)
        for x, y, index in DataLoader(pskd.Indexed(train), batch_size=4, sampler=sampler):
            if epoch:
                seen.append(bool(bank.known(index).all()))
            loss = distill(model(x), y, index=index)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return seen


def test_two_processes(tmp_path: Path) -> None:
    def work() -> None:
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        found: dict[str, Any] = {
            "private": refusal(),
            "shared": refusal(path=tmp_path / "other"),
            "own samples": refusal(host=rank, hosts=2),
            "seen": training(tmp_path),
        }
        del os.environ["LOCAL_WORLD_SIZE"]  # another launcher than torchrun: all processes may be here
        found["no torchrun"] = refusal()
        os.environ |= {"LOCAL_WORLD_SIZE": "1", "GROUP_WORLD_SIZE": "2"}
        found["two hosts"] = refusal()
        found["two hosts, shared"] = refusal(path=tmp_path / f"host{rank}")
        found["two hosts, sharded"] = refusal(host=rank, hosts=2)
        (tmp_path / f"{rank}.json").write_text(json.dumps(found))
        dist.barrier()
        dist.destroy_process_group()

    assert [exit_code(child) for child in in_children(work, 2)] == [0, 0]
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        for refused in ("private", "no torchrun", "two hosts", "two hosts, shared"):
            assert found[refused].startswith("memory: 2 processes train, each with a bank of its own: give path=FILE")
            assert "pskd.Snapshot" in found[refused]
        assert found["shared"] == found["own samples"] == found["two hosts, sharded"] == ""
        assert found["seen"] == [True] * 6


def test_one_process_needs_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")  # left over: there is no process group
    assert refusal() == ""
