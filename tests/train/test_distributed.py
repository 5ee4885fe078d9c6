"""Two real processes on one host: one bank, exact metrics, one folder."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from banks import stored
from helpers import SMALL, metrics_of, small
from processes import free_port
from safetensors.torch import load_file
from torch import nn

from pskd.errors import PskdError
from pskd.methods.hard import Hard
from pskd.plan import epoch_plan
from pskd.workbench.runs import checkpoint
from pskd.workbench.runs.checkpoint import Checkpoints
from pskd.workbench.runs.group import Group, lost_processes
from pskd.workbench.tasks.classification import Classification


def run_on_two(out: Path, *words: str, restarts: int = 0, cwd: Path | None = None) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    torchrun += ["--max-restarts", str(restarts)]
    command = [*torchrun, "-m", "pskd", "train", "digits", *SMALL, *words, "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=cwd)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("run folder:") == 1


def test_two_hosts_keep_a_half_each(tmp_path: Path) -> None:
    """Two agents of torchrun on the loopback, each its own host for the bank."""
    out = tmp_path / "run"
    port = free_port()
    agents = [
        subprocess.Popen(
            [
                *[sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(node)],
                *["--master-addr", "127.0.0.1", "--master-port", str(port), "--nproc-per-node", "1", "-m", "pskd"],
                *["train", "digits", *SMALL, "train.save_every=1 epoch", "--out", str(out)],
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for node in range(2)
    ]
    for agent in agents:
        assert agent.wait(280) == 0, agent.stderr and agent.stderr.read()
    newest = Checkpoints(out / "checkpoints", 1).newest(pytest.fail)
    assert newest is not None
    for host, shard in enumerate(checkpoint.shards(newest, "method")):
        memory = shard["memory"]
        assert (memory["host"], memory["hosts"], len(stored(memory).label)) == (host, 2, 100)
        assert bool((stored(memory).epoch > 0).all())
    assert json.loads((out / "result.json").read_text())["processes"] == 2


DYING = """
import os, signal
import pskd

class Dying(pskd.PSKD):
    def start_epoch(self, epoch):
        super().start_epoch(epoch)
        if epoch == 1 and (os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]) == ("1", "0"):
            os.kill(os.getpid(), signal.SIGKILL)
"""


def test_torchrun_restarts_a_run_that_lost_a_process(tmp_path: Path) -> None:
    (tmp_path / "dying.py").write_text(DYING)
    out = tmp_path / "run"
    words = ["method=dying:Dying", "train.save_every=3 steps"]
    run_on_two(out, *words, restarts=1, cwd=tmp_path)
    assert "resuming at epoch" in (out / "log.txt").read_text()
    assert [record["epoch"] for record in metrics_of(out)] == [1, 2, 3]


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("two") / "run"
    run_on_two(out, "train.save_every=1 epoch")
    return out


def test_the_bank_is_one_and_complete(two_processes: Path) -> None:
    newest = Checkpoints(two_processes / "checkpoints", 1).newest(pytest.fail)
    assert newest is not None
    memory = checkpoint.load(newest, "method-0")["memory"]
    assert bool((stored(memory).epoch > 0).all())  # every sample was recorded, by whichever process had it


def test_metrics_are_exact(two_processes: Path) -> None:
    from pskd.workbench.use import evaluate

    result = json.loads((two_processes / "result.json").read_text())
    assert result["processes"] == 2
    assert [record["epoch"] for record in metrics_of(two_processes)] == [1, 2, 3]
    alone = evaluate(two_processes, "test")
    assert alone["top1_error"] == result["top1_error"]
    assert alone["nll"] == pytest.approx(result["nll"], rel=1e-5)
    assert not any("module." in name for name in load_file(two_processes / "model.safetensors"))


def test_averaged_gradients_are_those_of_the_whole_batch() -> None:
    """Uneven shares, accumulation and a process with nothing but padding: still the mean over all real samples."""
    task = Classification(small())
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    method, group, world = Hard(), Group(), 4

    def gradient(world: int, rank: int, accumulate: int) -> torch.Tensor:
        model.zero_grad()
        (step,) = epoch_plan(5, 5, accumulate, seed=0, epoch=0, rank=rank, world=world)
        batches = task.batches([step], 0, torch.device("cpu"))
        for batch, real in zip(batches, step.real, strict=True):
            (task.loss(model, batch, real, method)[0].total * (real * world / step.total)).backward()
        return model[1].weight.grad.clone()

    assert group.world == 1
    whole = gradient(1, 0, 1)
    shares = torch.stack([gradient(world, rank, 2) for rank in range(world)])
    torch.testing.assert_close(shares.mean(0), whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [
        *("hard", "label_smoothing", "cs_kd", "tf_kd", "ps_kd method.memory=snapshot"),
        *("ols", "sat", "elr", "crl", "temporal_ensembling", "mean_teacher"),
        *("zipf_ls", "maxsup", "focal", "disturb_label", "ddgsd", "dlb", "byot"),
        *("ps_kd method.momentum=0.9 method.partners=1", "ps_kd method.alpha=auto"),
    ],
)
def test_every_method_with_amp_and_accumulation_on_two_processes(method: str, tmp_path: Path) -> None:
    from pskd.workbench.train.loop import train

    words = [f"method={method.split()[0]}", *method.split()[1:], "train.precision=bf16", "train.accumulate=2"]
    if method == "tf_kd":
        train(small("method=hard", "epochs=1"), tmp_path / "teacher")
        words.append(f"method.teacher={tmp_path / 'teacher'}")
    run_on_two(tmp_path / "run", *words, "augment.mix=cutmix", "train.save_every=1 epoch")
    assert len(metrics_of(tmp_path / "run")) == 3


def test_more_processes_than_samples_have_empty_shares() -> None:
    group = Group()
    group.world = 8
    shares = []
    for group.rank in range(8):
        shares.append(group.share(3).tolist())
        assert len(group.share(3, even=True)) == 1
    assert shares == [[0], [1], [2], [], [], [], [], []]


def test_a_lost_process_is_told_from_a_bug_also_after_the_group_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = RuntimeError("[gloo/transport/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:1")
    with pytest.raises(RuntimeError, match="closed by peer"), lost_processes(Path("run")):
        raise lost
    monkeypatch.setenv("WORLD_SIZE", "2")
    with (
        pytest.raises(PskdError, match=r"another process of this run has ended.* --resume --out run"),
        lost_processes(Path("run")),
    ):
        raise lost
