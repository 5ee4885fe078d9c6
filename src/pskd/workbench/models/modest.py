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
from pskd.workbench.space import free_bytes, shown

Model = TypeVar("Model", bound=nn.Module)
COPIES = 3  # of each weight at the least: itself, its gradient, and what an optimizer keeps of it
LARGE = 256e6  # bytes of weights that are made without a look at what is still to come
MOST_TENSORS = 50_000  # of one model; the deepest published have some thousands


def build_within_memory(make: Callable[[], Model], copies: int = COPIES) -> Model:
    """``make()``; a model that is too large for the memory, or has layers without end, is refused.

    A large one is begun anew: its weights are first counted on the device that has shapes and no memory. The random
    numbers are those of one building.
    """
    drawn, room = (torch.get_rng_state(), random.getstate()), free_bytes() / copies
    with contextlib.suppress(_StoppedError), _counted(min(LARGE, room)) as weights:
        return make()
    _check(weights if weights.tensors > MOST_TENSORS else _weights_of(make), room, copies)
    torch.set_rng_state(drawn[0])
    random.setstate(drawn[1])
    try:
        with _counted(room) as weights:
            return make()
    except _StoppedError as error:
        _check(weights, room, copies)
        needs = f"{shown(copies * error.asked)} of memory" if error.asked else "more memory than can be counted"
        raise PskdError(
            f"one layer of the model needs {needs} and there are {shown(copies * room)}: make it smaller"
        ) from error


def _weights_of(make: Callable[[], nn.Module]) -> _Weights:
    """Those that it would make; of what cannot be made without memory, as far as it goes."""
    quiet = warnings.catch_warnings(action="ignore")
    with _counted(math.inf) as weights, contextlib.suppress(Exception), quiet, torch.device("meta"):
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
    """The building went as far as it may. ``asked``: bytes of the one tensor that torch could not get memory for."""

    def __init__(self, asked: float = 0) -> None:
        super().__init__()
        self.asked = asked


@contextlib.contextmanager
def _counted(most: float) -> Iterator[_Weights]:
    """Count the weights of what is built inside, and stop it where they need more than ``most`` bytes."""
    weights = _Weights()

    def look(_module: nn.Module, _name: str, weight: nn.Parameter | None) -> None:
        if weight is not None:
            weights.bytes += weight.numel() * weight.element_size()
            weights.tensors += 1
            if weights.bytes > most or weights.tensors > MOST_TENSORS:
                raise _StoppedError

    hook = register_module_parameter_registration_hook(look)
    try:
        yield weights
    except (RuntimeError, MemoryError, OverflowError, TypeError) as error:
        if not too_large(error):
            raise
        asked = re.search(r"tried to allocate (\d+) bytes", str(error))
        raise _StoppedError(float(asked[1]) if asked else 0) from error
    finally:
        hook.remove()


def _check(weights: _Weights, room: float, copies: int) -> None:
    if weights.tensors > MOST_TENSORS:
        raise PskdError(f"the model has more than {MOST_TENSORS:,} weight tensors: make it less deep")
    if weights.bytes > room:
        raise PskdError(
            f"the model needs at least {shown(copies * weights.bytes)} of memory and there are "
            f"{shown(copies * room)}: make it smaller"
        )
