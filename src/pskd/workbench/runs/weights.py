"""Weights as safetensors. The file's metadata holds what is needed to use them: classes, view, the model's options."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from pskd.errors import PskdError, error_context
from pskd.workbench.reading import check_file
from pskd.workbench.runs import sharding
from pskd.workbench.runs.files import to_disk
from pskd.workbench.runs.group import Group

_KEY = "pskd"


def save(model: nn.Module, path: Path, metadata: dict[str, Any], group: Group) -> None:
    """Write the model's weights and ``metadata`` atomically; all processes have to call it, the leader writes."""
    state = sharding.whole(model.state_dict()) if sharding.is_spread(model) else None
    if not group.leader:
        return
    beside, about = path.with_name(f".{path.name}.writing"), {_KEY: json.dumps(metadata)}
    beside.unlink(missing_ok=True)  # a link of this name would be followed
    try:
        if state is None:
            safetensors.torch.save_model(model, str(beside), metadata=about)  # stores tied weights once
        else:
            safetensors.torch.save_file(state, str(beside), metadata=about)
    except SafetensorError as error:  # an error of the system comes as text
        if (number := re.search(r"os error (\d+)", str(error))) is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error
    beside.chmod(0o644)  # safetensors makes it private
    to_disk(beside)
    beside.replace(path)
    to_disk(path.parent)


def load(model: nn.Module, path: Path) -> None:
    """Read weights into ``model``."""
    check_file(path)
    with error_context(f"{path} does not fit this model, or is damaged"):
        if sharding.is_spread(model):
            sharding.load_model(model, safetensors.torch.load_file(str(path)))
        else:
            safetensors.torch.load_model(model, str(path))


def read(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by name."""
    check_file(path)
    with error_context(f"{path} cannot be read as safetensors"):
        return dict(safetensors.torch.load_file(str(path)))


def path_of(run: Path, *, best: bool = False) -> Path:
    """The weights of a finished run: the last epoch's, or those of the best one by the validation split."""
    last = run / "model.safetensors"
    path = run / "best.safetensors" if best else last
    if path.is_file():
        return path
    if not (run / "config.yaml").is_file() and not last.is_file():
        raise PskdError(f"{run} is not a run folder: it has no config.yaml, and no weights")
    if best and last.is_file():
        raise PskdError(f"{run} has no best.safetensors: without a validation split no epoch is chosen as the best")
    if (run / "result.json").is_file():
        raise PskdError(f"{run} has lost its {path.name}: copy it back, or train it again with another --out")
    raise PskdError(f"{run} has no {path.name}: it is not a finished run (pskd train --resume --out {run} finishes it)")


def metadata(path: Path) -> dict[str, Any]:
    """What was saved beside the weights."""
    check_file(path)
    with error_context(f"{path} holds no weights of a pskd run"):
        with safe_open(str(path), framework="pt") as file:
            tree = json.loads((file.metadata() or {})[_KEY])
        if not isinstance(tree, dict):
            raise TypeError("their metadata is no mapping")
        return tree
