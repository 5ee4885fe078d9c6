"""Small runs on the embedded digits, and processes that can be killed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from pskd.config import Config, resolve
from pskd.recipes import read_recipe

SMALL = ("data.per_class=20", "model.width=4", "batch_size=32", "epochs=3")


def small(*overrides: str) -> Config:
    """ResNet-8 of width 4 on 200 digits: 3 epochs of 7 steps, a fraction of a second."""
    return resolve(read_recipe("digits"), [*SMALL, *overrides], name="digits")


def metrics_of(folder: Path) -> list[dict[str, Any]]:
    """A run's metrics without the times, which never repeat."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in record.items() if key != "seconds"} for record in records]


def equal_runs(one: Path, other: Path) -> bool:
    """Whether two finished runs have the same metrics and the same weights, to the bit."""
    weights, others = load_file(one / "model.safetensors"), load_file(other / "model.safetensors")
    return metrics_of(one) == metrics_of(other) and all(torch.equal(weights[name], others[name]) for name in weights)


def in_child(work: Callable[[], object]) -> int:
    """Start ``work`` in a forked process, which has torch loaded already; returns its process id."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        work()
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    finally:
        os._exit(code)


def value_and_gradient(loss: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    return loss.detach(), torch.autograd.grad(loss, logits)[0]
