"""An accelerator that computes on the CPU: it counts kernels, and all that would make the host wait for it.

A copy to the host that was not waited for holds garbage until an event that was recorded after it is waited for. The
device knows no time, streams, pinned memory or autocast.
"""

from __future__ import annotations

import contextlib
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

NAME = "simulated"
# What is no kernel: another view of the same numbers.
VIEWS = {
    *("view", "_unsafe_view", "_reshape_alias", "as_strided", "slice", "select", "t", "transpose", "permute", "expand"),
    *("unsqueeze", "squeeze", "detach", "alias", "unbind", "split", "split_with_sizes", "lift_fresh"),
}
# How many numbers come out is known only when they are there.
DATA_DEPENDENT = {"nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "bincount", "equal"}
GARBAGE = 77


class Log:
    """What a step did: kernels by name, and waits by name and line."""

    def __init__(self) -> None:
        self.kernels: Counter[str] = Counter()
        self.waits: list[str] = []
        self.step = 0  # events of earlier steps are ready when they are asked for
        self.in_flight: list[tuple[Tensor, Tensor]] = []  # copies to the host, and what they will hold

    def wait(self, why: str) -> None:
        ours = [frame for frame in traceback.extract_stack() if "/pskd/" in frame.filename]
        place = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else "the test"
        self.waits.append(f"{why} in {place}")

    def new_step(self) -> None:
        self.kernels.clear()
        self.waits.clear()
        self.step += 1


LOG = Log()


class OnDevice(Tensor):
    """A tensor of the accelerator around one of the CPU."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> OnDevice:
        made: OnDevice = Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype,
            device=torch.device(NAME, 0),
        )  # fmt: skip
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})

    def tolist(self) -> Any:
        return self.cpu().tolist()


class EveryOperation(TorchDispatchMode):
    """Makes tensors of the accelerator where an operation names it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


class Event:
    """``torch.Event``: its copies arrive when it is waited for."""

    def __init__(self, device: Any = None, **_: Any) -> None:
        self.copies: list[tuple[Tensor, Tensor]] = []
        self.step = -1

    def record(self, stream: Any = None) -> None:
        self.copies, self.step = list(LOG.in_flight), LOG.step

    def synchronize(self) -> None:
        if self.step == LOG.step:
            LOG.wait("an event of this very step")
        arrived = {id(here) for here, _ in self.copies}
        for here, right in self.copies:
            if any(here is other for other, _ in LOG.in_flight):
                here.copy_(right)
        LOG.in_flight = [copy for copy in LOG.in_flight if id(copy[0]) not in arrived]


def run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """An operation of any device."""
    name = func.overloadpacket.__name__
    if name == "_to_copy":
        return _copy_to(args[0], kwargs)
    if name == "copy_":
        return _copy_into(args[0], args[1], bool(args[2] if len(args) > 2 else kwargs.get("non_blocking")))
    ours = [part for part in tree_leaves((args, kwargs)) if isinstance(part, OnDevice)]
    if name == "_local_scalar_dense" and ours:
        LOG.wait("a number is read")
    elif name in DATA_DEPENDENT and ours:
        LOG.wait(name)
    elif name in ("index", "index_put", "index_put_", "_index_put_impl_") and ours:
        for index in args[1]:
            if isinstance(index, Tensor) and (not isinstance(index, OnDevice) or index.dtype == torch.bool):
                LOG.wait(f"{name} by {'a mask' if index.dtype == torch.bool else 'an index of the host'}")
    made_here = bool(ours) or _is_ours(kwargs.get("device"))
    for option, value in (("device", "cpu"), ("pin_memory", False)):
        if option == "device" and not _is_ours(kwargs.get("device")):
            continue
        kwargs = {**kwargs, **({option: value} if option in kwargs else {})}
    plain_args, plain_kwargs = tree_map(_held, (args, kwargs))
    out = func(*plain_args, **plain_kwargs)
    if not made_here or name == "_local_scalar_dense":
        return out
    if name not in VIEWS:
        LOG.kernels[name] += 1
    known = {id(part.held): part for part in ours}
    return tree_map(lambda part: known.get(id(part), OnDevice(part)) if isinstance(part, Tensor) else part, out)


def _is_ours(device: Any) -> bool:
    return device is not None and torch.device(device).type == NAME


def _held(part: Any) -> Any:
    return part.held if isinstance(part, OnDevice) else part


def _copy_to(source: Tensor, kwargs: dict[str, Any]) -> Tensor:
    was_here, device = isinstance(source, OnDevice), kwargs.get("device")
    is_here = was_here if device is None else _is_ours(device)
    plain = {name: value for name, value in kwargs.items() if name not in ("device", "non_blocking", "pin_memory")}
    copy: Tensor = torch.ops.aten._to_copy.default(_held(source), **plain)
    if was_here == is_here:
        LOG.kernels["_to_copy"] += is_here
    elif not kwargs.get("non_blocking"):
        LOG.wait("a copy")
    elif was_here:
        LOG.in_flight.append((copy, copy.clone()))
        copy.fill_(True if copy.dtype == torch.bool else GARBAGE)
    return OnDevice(copy) if is_here else copy


def _copy_into(target: Tensor, source: Tensor, non_blocking: bool) -> Tensor:
    if isinstance(target, OnDevice) and isinstance(source, OnDevice):
        LOG.kernels["copy_"] += 1
    elif isinstance(target, OnDevice) != isinstance(source, OnDevice) and not non_blocking:
        LOG.wait("a copy")
    _held(target).copy_(_held(source))
    return target


def _set_up() -> None:
    try:
        from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
    except ImportError:
        pytest.skip("this torch cannot make a device in Python", allow_module_level=True)

    class Guard(torch._C._acc.DeviceGuard):
        def type_(self) -> Any:
            return torch._C._autograd.DeviceType.PrivateUse1

    class Hooks(torch._C._acc.PrivateUse1Hooks):
        def is_available(self) -> bool:
            return True

        def has_primary_context(self, device: int) -> bool:
            return True

        def is_built(self) -> bool:
            return True

    class Backend:
        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            answers = {"is_available": True, "is_initialized": True, "device_count": 1, "get_rng_state": None}
            answers |= {"get_amp_supported_dtype": [torch.float16, torch.bfloat16]}
            return lambda *_: answers.get(name, 0)

    if not hasattr(torch, NAME):
        _setup_privateuseone_for_python_backend(NAME, Backend(), Hooks(), Guard())


_set_up()
DEVICE = torch.device(NAME, 0)


@contextlib.contextmanager
def simulated() -> Iterator[Log]:
    """Inside, ``DEVICE`` is there."""
    real, torch.Event = torch.Event, Event  # type: ignore[misc,assignment]
    torch._C._set_only_lift_cpu_tensors(True)
    LOG.in_flight.clear()
    LOG.new_step()
    try:
        with EveryOperation():
            yield LOG
    finally:
        torch.Event = real  # type: ignore[misc]
        torch._C._set_only_lift_cpu_tensors(False)
