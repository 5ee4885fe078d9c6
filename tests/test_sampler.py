"""EpochSampler: every sample once, equal steps everywhere, resume from a step; and a bank in a real DDP loop."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from pages import texts
from processes import exit_code, in_child, in_children
from torch import nn
from torch.nn.parallel import DistributedDataParallel  # noqa: F401  # the loop's
from torch.utils.data import DataLoader, TensorDataset

import pskd
from pskd.errors import PskdError
from pskd.plan import epoch_plan

K = 4


def epoch_of(samples: int, batch: int, replicas: int, hosts: int, epoch: int = 3) -> list[list[list[int]]]:
    """The batches of every process."""
    found = []
    for rank in range(replicas):
        sampler = pskd.EpochSampler(samples, batch, 7, num_replicas=replicas, rank=rank, hosts=hosts)
        sampler.set_epoch(epoch)
        found.append(list(sampler))
        assert len(found[-1]) == len(sampler)
        assert {i % hosts for part in found[-1] for i in part} <= {sampler.host}
    return found


@pytest.mark.parametrize(
    ("samples", "batch", "replicas", "hosts"),
    [
        (103, 16, 1, 1),
        (103, 8, 2, 1),
        (97, 8, 4, 1),
        (64, 8, 2, 1),
        (7, 1, 2, 1),
        (103, 4, 4, 2),
        (101, 5, 6, 3),
        (12, 3, 4, 2),
        (23, 2, 2, 2),
    ],
)
def test_every_sample_once_and_equal_steps(samples: int, batch: int, replicas: int, hosts: int) -> None:
    every = epoch_of(samples, batch, replicas, hosts)
    assert len({len(steps) for steps in every}) == 1
    assert sorted(i for steps in every for step in steps for i in step) == list(range(samples))
    assert min(len(step) for steps in every for step in steps) >= min(2, batch - (hosts > 1))
    assert epoch_of(samples, batch, replicas, hosts, epoch=4) != every


def test_a_step_has_the_same_samples_for_any_number_of_processes() -> None:
    """Those of the workbench's own plan."""
    plan = [set(step.parts[0].tolist()) for step in epoch_plan(96, 16, 1, 7, 3)]
    for replicas in (1, 2, 4):
        every = epoch_of(96, 16 // replicas, replicas, 1)
        assert [set().union(*parts) for parts in zip(*every, strict=True)] == plan


def test_resume_from_a_step_and_loader_workers() -> None:
    sampler = pskd.EpochSampler(range(40), 8, seed=1)
    sampler.set_epoch(2)
    whole = list(sampler)
    sampler.set_epoch(2, start_step=3)
    assert list(sampler) == whole[3:]
    assert len(sampler) == 2
    loader = DataLoader(pskd.Indexed(TensorDataset(torch.arange(40))), batch_sampler=sampler)
    assert [index.tolist() for _, index in loader] == whole[3:]
    sampler.set_epoch(3)
    assert len(list(sampler)) == 5
    assert loader.batch_sampler.sampler is sampler  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"num_replicas": 2, "rank": 2}, r"rank=2, num_replicas=2, hosts=1: a rank lies in 0\.\.num_replicas - 1"),
        ({"num_replicas": 3, "rank": 0, "hosts": 2}, "every host has the same number of processes"),
        ({"batch_size": 1, "num_replicas": 2, "rank": 0, "hosts": 2}, "several need 2 samples or more each"),
        ({"samples": 7, "num_replicas": 4, "rank": 0}, "samples: 7 are too few for 4 processes, at least 8"),
    ],
)
def test_wrong_use(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(PskdError, match=message):
        pskd.EpochSampler(**{"samples": 20, "batch_size": 2, **wrong})
    with pytest.raises(PskdError, match="both count from 0"):
        pskd.EpochSampler(20, 2).set_epoch(-1)


found: list[bool] = []  # whether a step's rows were all there


class Watched(pskd.PredictionBank):
    def read(self, key: Any, batch: Any) -> Any:
        past = super().read(key, batch)
        found.append(past.known is None or bool(past.known.all()))
        return past


def training(batch_size: int) -> list[float]:
    """The loop of docs/scaling.md, run as it stands: the weights in the end."""
    torch.manual_seed(0)
    train = TensorDataset(torch.randn(24, 3), torch.arange(24) % K)
    model = nn.Linear(3, 100)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    names = {**globals(), "train": train, "model": model, "optimizer": optimizer}
    (code,) = texts("docs/scaling.md", "py")
    exec(code.replace("batch_size=64", f"batch_size={batch_size}").replace("pskd.PredictionBank", "Watched"), names)
    return model.weight.detach().flatten().tolist()


def test_the_readme_s_lines_are_those_of_the_loop() -> None:
    (loop,) = texts("docs/scaling.md", "py")
    (block,) = (block for block in texts("README.md", "py") if "EpochSampler" in block)
    for line in block.splitlines():
        assert line.replace("memory = ", "bank = ") in loop


@pytest.mark.parametrize("hosts", [1, 2])
def test_two_processes_learn_what_one_does(tmp_path: Path, hosts: int) -> None:
    """With two hosts the order is another one, but every row is still at hand."""

    def work() -> None:
        torch.set_num_threads(1)
        folder = tmp_path / os.environ["GROUP_RANK"]
        folder.mkdir(exist_ok=True)
        os.chdir(folder)
        weights = training(8 // int(os.environ["WORLD_SIZE"]))
        (tmp_path / f"{os.environ['RANK']}.json").write_text(json.dumps([found, weights]))
        dist.barrier()
        dist.destroy_process_group()

    torch.optim.SGD(nn.Linear(1, 1).parameters(), 0.1)  # what this imports, the children find imported
    assert [exit_code(child) for child in in_children(work, 2 // hosts, hosts)] == [0, 0]
    both = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    for rows, weights in both:
        assert rows == [True] * 6
        assert weights == both[0][1]
    if hosts == 1:
        alone = {"RANK": 0, "GROUP_RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 0}
        assert exit_code(in_child(work, **alone)) == 0
        assert json.loads((tmp_path / "0.json").read_text())[1] == pytest.approx(both[0][1], rel=1e-4, abs=1e-6)
