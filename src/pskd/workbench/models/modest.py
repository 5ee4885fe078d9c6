"""A model is only built if it fits into memory: the weights of a large one are counted before they are made."""

from __future__ import annotations

import contextlib
import math
import random
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from pskd.errors import PskdError
from pskd.workbench.space import format_bytes, free_bytes

Model = TypeVar("Model", bound=nn.Module)
COPIES = 3  # of each weight, at least: itself, its gradient, and the optimizer's state
LARGE = 256e6  # bytes of weights that are built without counting first
MOST_TENSORS = 50_000  # of one model; the deepest published have some thousands


def build_within_memory(make: Callable[[], Model], copies: int = COPIES) -> Model:
    """``make()``, or an error where the model is too large for the memory or never ends.

    A large one is started again after its weights were counted on the meta device, which needs no memory. It draws the
    same random numbers as if it were built once.
    """
    torch_state, python_state, room = torch.get_rng_state(), random.getstate(), free_bytes() / copies
    with contextlib.suppress(_StoppedError), _count_weights(min(LARGE, room)) as weights:
        return make()
    _check_size(weights if weights.tensors > MOST_TENSORS else _count_on_meta(make), room, copies)
    torch.set_rng_state(torch_state)
    random.setstate(python_state)
    try:
        with _count_weights(room) as weights:
            return make()
    except _StoppedError as error:
        _check_size(weights, room, copies)
        needs = f"{format_bytes(copies * error.asked)} of memory" if error.asked else "more memory than can be counted"
        raise PskdError(
            f"one layer of the model needs {needs} and there are {format_bytes(copies * room)}: make it smaller"
        ) from error


def _count_on_meta(make: Callable[[], nn.Module]) -> _Weights:
    """The weights that ``make`` would build, up to the first that cannot be built on the meta device."""
    quiet = warnings.catch_warnings(action="ignore")
    with _count_weights(math.inf) as weights, contextlib.suppress(Exception), quiet, torch.device("meta"):
        make()
    return weights


def too_large(error: Exception) -> bool:
    """Whether torch could not get the memory for one tensor."""
    return any(sign in str(error) for sign in ("allocate memory", "overflow", "Storage size", "out of memory"))


@dataclass
class _Weights:
    bytes: float = 0
    tensors: int = 0


class _StoppedError(Exception):
    """A model became too large. ``asked``: bytes of the one tensor that torch could not get memory for."""

    def __init__(self, asked: float = 0) -> None:
        super().__init__()
        self.asked = asked


@contextlib.contextmanager
def _count_weights(most: float) -> Iterator[_Weights]:
    """Count the weights of the model that is built inside; stop it where they need more than ``most`` bytes."""
    weights = _Weights()

    def count(_module: nn.Module, _name: str, weight: nn.Parameter | None) -> None:
        if weight is not None:
            weights.bytes += weight.numel() * weight.element_size()
            weights.tensors += 1
            if weights.bytes > most or weights.tensors > MOST_TENSORS:
                raise _StoppedError

    hook = register_module_parameter_registration_hook(count)
    try:
        yield weights
    except (RuntimeError, MemoryError, OverflowError, TypeError) as error:
        if not too_large(error):
            raise
        asked = re.search(r"tried to allocate (\d+) bytes", str(error))
        raise _StoppedError(float(asked[1]) if asked else 0) from error
    finally:
        hook.remove()


def _check_size(weights: _Weights, room: float, copies: int) -> None:
    if weights.tensors > MOST_TENSORS:
        raise PskdError(f"the model has more than {MOST_TENSORS:,} weight tensors: make it less deep")
    if weights.bytes > room:
        raise PskdError(
            f"the model needs at least {format_bytes(copies * weights.bytes)} of memory and there are "
            f"{format_bytes(copies * room)}: make it smaller"
        )
