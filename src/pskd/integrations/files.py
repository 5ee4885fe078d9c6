"""The state of a method as one safetensors file: tensors by their names, numbers and words in its header."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from torch import Tensor

from pskd.errors import PskdError
from pskd.integrations import missing

try:
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import save_file
except ModuleNotFoundError as error:
    raise missing("files", "transformers", error) from error

_KEY = "pskd"


def save_state(state: dict[str, Any], path: Path) -> None:
    """Write a state beside and rename it into place: a file of this name is whole."""
    tensors: dict[str, Tensor] = {}
    places = _with_places(state, "", tensors)
    unfinished = path.with_name(path.name + ".unfinished")
    save_file(tensors, unfinished, metadata={_KEY: json.dumps(places)})
    with unfinished.open("rb") as file:
        os.fsync(file.fileno())
    unfinished.replace(path)


def load_state(path: Path) -> dict[str, Any]:
    """What ``save_state`` wrote."""
    try:
        with safe_open(path, "pt") as file:
            places = json.loads((file.metadata() or {})[_KEY])
            state: dict[str, Any] = _with_tensors(places, file)
    except (OSError, SafetensorError, KeyError, ValueError, TypeError) as error:
        raise PskdError(f"{path} is no state of a method, or it is damaged ({error}); resume an older one") from error
    return state


def _with_places(state: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """``state`` with ``[name]`` in the place of each tensor, which goes to ``tensors``."""
    if isinstance(state, Tensor):
        # A copy where weights are tied, which the format does not know.
        taken = {tensor.untyped_storage().data_ptr() for tensor in tensors.values()}
        tied = state.untyped_storage().data_ptr() in taken
        tensors[name] = (state.clone() if tied else state).contiguous()
        return [name]
    if isinstance(state, dict):
        return {key: _with_places(value, f"{name}/{key}" if name else key, tensors) for key, value in state.items()}
    return state


def _with_tensors(places: Any, file: Any) -> Any:
    if isinstance(places, list):
        return file.get_tensor(*places)
    if isinstance(places, dict):
        return {key: _with_tensors(value, file) for key, value in places.items()}
    return places
