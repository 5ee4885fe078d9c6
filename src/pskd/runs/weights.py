"""Weights in safetensors, with all that is needed to use them inside: classes, view, the model's options."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError, safe_open
from torch import nn

from pskd.runs import sharding
from pskd.runs.group import Group
from pskd.runs.files import to_disk
from pskd.errors import PskdError

_KEY = "pskd"


def save(model: nn.Module, path: Path, metadata: dict[str, Any], group: Group) -> None:
    """Write the model's weights and ``metadata`` atomically; all processes have to call it, the leader writes."""
    state = sharding.whole(model.state_dict()) if sharding.is_spread(model) else None
    if not group.leader:
        return
    beside, about = path.with_name(f".{path.name}.writing"), {_KEY: json.dumps(metadata)}
    if state is None:
        safetensors.torch.save_model(model, str(beside), metadata=about)  # which stores weights that are tied once
    else:
        safetensors.torch.save_file(state, str(beside), metadata=about)
    beside.chmod(0o644)  # safetensors makes it private
    to_disk(beside)
    beside.replace(path)
    to_disk(path.parent)


def load(model: nn.Module, path: Path) -> None:
    """Read weights into ``model``."""
    try:
        if sharding.is_spread(model):
            sharding.load_model(model, safetensors.torch.load_file(str(path)))
        else:
            safetensors.torch.load_model(model, str(path))
    except (OSError, RuntimeError, SafetensorError) as error:
        raise PskdError(f"{path} does not fit this model, or is damaged: {str(error).splitlines()[0]}") from error


def restore(run: Path, make: Callable[[dict[str, Any]], nn.Module], task: str) -> tuple[nn.Module, dict[str, Any]]:
    """The model of a finished run of ``task``, on the CPU, and what was saved beside its weights.

    ``make`` builds the model from the latter.
    """
    path = run / "model.safetensors"
    if not path.is_file():
        raise PskdError(f"{run} has no model.safetensors: it is not a finished run (pskd train --resume finishes one)")
    about = metadata(path)
    if about.get("task") != task:
        raise PskdError(f"{run} is a run of {about.get('task')}, not of {task}")
    try:
        model = make(about)
    except (KeyError, TypeError) as error:
        raise PskdError(f"{path} does not say what model it holds ({error!r})") from None
    load(model, path)
    return model, about


def metadata(path: Path) -> dict[str, Any]:
    """What was saved beside the weights."""
    try:
        with safe_open(str(path), framework="pt") as file:
            return dict(json.loads((file.metadata() or {})[_KEY]))
    except (OSError, KeyError, ValueError, SafetensorError) as error:
        raise PskdError(f"{path} holds no weights of a pskd run: {str(error).splitlines()[0]}") from error
