"""A method whose records are spread over hosts, in a trainer whose checkpoint only process 0 writes."""

from __future__ import annotations

import io
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pskd.memory.base import shards_of
from pskd.methods import Method


def new_channel(method: Method) -> Any:
    """A group in which CPUs talk, for ``states_of_hosts``; None where a state is whole. All processes call it."""
    return dist.new_group(backend="gloo") if shards_of(method.memory) > 1 else None


def states_of_hosts(method: Method, channel: Any, *, leads: bool) -> list[dict[str, Any]]:
    """In process 0 the states of all hosts; in the others their own. All processes call it.

    Args:
        channel: what ``new_channel`` made; None: this process's state is all there is.
        leads: whether this is the first process of its host, which speaks for it.
    """
    if channel is None:
        return [method.state_dict()]
    own = _packed(method.state_dict()) if leads else torch.empty(0, dtype=torch.uint8)
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, torch.tensor([len(own)]), group=channel)
    if dist.get_rank() != 0:
        if leads:
            dist.send(own, 0, group=channel)
        return [method.state_dict()]
    parts = [own]
    for rank, size in enumerate(sizes):
        if rank and int(size):
            parts.append(torch.empty(int(size), dtype=torch.uint8))
            dist.recv(parts[-1], rank, group=channel)
    return [_unpacked(part) for part in parts]


def load_states(method: Method, states: list[dict[str, Any]]) -> None:
    """Take from every host's state what belongs here."""
    for state in states:
        method.load_state_dict(state)


def _packed(state: dict[str, Any]) -> Tensor:
    stream = io.BytesIO()
    torch.save(state, stream)
    return torch.frombuffer(stream.getbuffer(), dtype=torch.uint8)


def _unpacked(packed: Tensor) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(io.BytesIO(packed.numpy().data), weights_only=True)
    return state
