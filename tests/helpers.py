"""Small runs on the embedded digits."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pskd.workbench.cli import main
from pskd.workbench.config import Config, resolve
from pskd.workbench.recipes import read_recipe
from pskd.workbench.train.loop import train

SMALL = ("data.per_class=20", "model.width=4", "batch_size=32", "epochs=3")


def small(*overrides: str) -> Config:
    """ResNet-8 of width 4 on 200 digits: 3 epochs of 7 steps, a fraction of a second."""
    return resolve(read_recipe("digits"), [*SMALL, *overrides], name="digits")


def unfinished(out: Path, config: Config) -> Path:
    """A run whose last checkpoint is the last thing it has: what it wrote in the end is gone."""
    train(config, out)
    for name in ("result.json", "model.safetensors", "predictions.npz"):
        (out / name).unlink()
    return out


def metrics_of(folder: Path) -> list[dict[str, Any]]:
    """A run's metrics without the times, which never repeat."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in record.items() if key != "seconds"} for record in records]


def pskd(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit code, output and errors of one command."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setattr("sys.argv", ["pskd", *words])
        with pytest.raises(SystemExit) as stop:
            main()
    out, err = capfd.readouterr()
    return int(stop.value.code or 0), out, err


FORKS = """
import json, os, sys, tempfile
import sklearn.datasets
import pskd.workbench.cli, pskd.workbench.report.page, pskd.workbench.study.worker
import pskd.workbench.tasks.classification.task

def run(words):
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = os.fork()
        if not child:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            code, sys.argv = 1, ["pskd", *words]
            try:
                pskd.workbench.cli.main()
            except SystemExit as stop:
                code = stop.code or 0
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return code, *(file.seek(0) or file.read() for file in (out, err))

print(json.dumps([run(words) for words in json.loads(sys.argv[1])]))
"""


def fresh(commands: Sequence[Sequence[str]]) -> list[tuple[int, str, str]]:
    """Exit code, output and errors of each command in a program that knows nothing of those before it.

    They are forks of one process, since torch takes seconds to load.
    """
    program = [sys.executable, "-c", FORKS, json.dumps(commands)]
    done = subprocess.run(program, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [(code, out, err) for code, out, err in json.loads(done.stdout)]


def value_and_gradient(loss: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    return loss.detach(), torch.autograd.grad(loss, logits)[0]
