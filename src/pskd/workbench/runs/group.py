"""The processes of a run: how they decide together and put their results together."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pskd.errors import PskdError

CONTINUE, SAVE, STOP = 0, 1, 2


def own_rank() -> int:
    """This process's number among those of the run, which torchrun puts into the environment."""
    given = {"RANK": os.environ.get("RANK", "0"), "WORLD_SIZE": os.environ.get("WORLD_SIZE", "1")}
    for name, value in given.items():
        if not value.isdecimal():
            raise PskdError(f"the variable {name} is {value!r}, not a number: start several processes by torchrun")
    rank, world = map(int, given.values())
    if (rank or world > 1) and not ("MASTER_ADDR" in os.environ and rank < world):
        raise PskdError("the variable RANK or WORLD_SIZE is set, but this is no process of torchrun: unset both")
    return rank


class Group:
    """The processes of this run; with one process everything here does nothing.

    A host is what torchrun calls a node: ``host`` of ``hosts``, with this process ``local_rank`` of ``local_world``.
    Decisions travel between CPUs in a gloo group of their own, so that no accelerator has to wait for them.
    """

    def __init__(self) -> None:
        self.active = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        self.world = dist.get_world_size() if self.active else 1
        self.rank = dist.get_rank() if self.active else 0
        self.host, self.hosts = self._environment("GROUP_RANK", 0), self._environment("GROUP_WORLD_SIZE", 1)
        self.local_rank, self.local_world = self._environment("LOCAL_RANK", self.rank), self.world
        if self.hosts > 1:
            self.local_world = self._environment("LOCAL_WORLD_SIZE", 1)
        self._gloo: Any = dist.new_group(backend="gloo") if self.active else None
        self._pending: tuple[dist.Work | None, Tensor] | None = None

    def _environment(self, name: str, otherwise: int) -> int:
        return int(os.environ.get(name, otherwise)) if self.active else otherwise

    @property
    def leader(self) -> bool:
        return self.rank == 0

    @property
    def host_leader(self) -> bool:
        """The first process of its host."""
        return self.local_rank == 0

    @property
    def place(self) -> dict[str, int]:
        """This process's place among the others, as ``epoch_plan`` takes it."""
        return {"rank": self.local_rank, "world": self.local_world, "host": self.host, "hosts": self.hosts}

    def barrier(self) -> None:
        if self.active:
            dist.barrier(self._gloo)

    def agree(self, wish: int) -> int:
        """The largest wish of all processes. With several, it is that of the last call, so that nobody waits."""
        if not self.active:
            return wish
        decision = self.settle()
        value = torch.tensor([wish])
        self._pending = dist.all_reduce(value, dist.ReduceOp.MAX, group=self._gloo, async_op=True), value
        return decision

    def settle(self) -> int:
        """The decision of the last call of ``agree``."""
        if self._pending is None:
            return CONTINUE
        work, value = self._pending
        self._pending = None
        if work is not None:
            work.wait()
        return int(value)

    def sum(self, value: Tensor) -> Tensor:
        """The sum over processes of a CPU tensor."""
        if self.active:
            dist.all_reduce(value, group=self._gloo)
        return value

    def maximum(self, value: int) -> int:
        """The largest of all processes' numbers."""
        numbers = torch.tensor([value])
        if self.active:
            dist.all_reduce(numbers, dist.ReduceOp.MAX, group=self._gloo)
        return int(numbers)

    def copy_buffers(self, model: nn.Module) -> None:
        """Give every process the leader's buffers: batch statistics are each process's own after a step."""
        if self.active:
            for buffer in model.buffers():
                dist.broadcast(buffer, 0)

    def share(self, count: int, *, even: bool = False) -> Tensor:
        """The positions of 0..count-1 that this process evaluates.

        If ``even``, every process has equally many, because all take part in each; some repeat the last one.
        """
        longest = -(-count // self.world) * self.world
        return torch.arange(longest if even else count)[self.rank :: self.world].clamp_max(count - 1)

    def gather(self, rows: Tensor, count: int) -> Tensor:
        """All ``count`` rows in their order, from the rows that each process has for its ``share``."""
        if not self.active:
            return rows
        longest = -(-count // self.world)
        rows = rows.cpu()
        padded = torch.cat((rows, rows.new_zeros(longest - len(rows), *rows.shape[1:])))
        parts = [torch.empty_like(padded) for _ in range(self.world)]
        dist.all_gather(parts, padded.contiguous(), group=self._gloo)
        return torch.stack(parts, 1).flatten(0, 1)[:count]


def rejoin_process_group() -> None:
    """Connect the processes that torchrun has restarted.

    Its store still holds the addresses of the dead processes. With one agent all processes know the same number of
    restarts, which keeps old and new entries apart. With several agents they do not, and torchrun needs
    ``TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1``, which makes it take a new store.
    """
    restarts = restart_count()
    if not restarts or os.environ.get("GROUP_WORLD_SIZE") != "1" or dist.is_initialized():
        return
    store, rank, world = next(dist.rendezvous("env://"))  # type: ignore[attr-defined]
    own = dist.PrefixStore(f"restart-{restarts}", store)  # type: ignore[attr-defined]
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=own, rank=rank, world_size=world)


def restart_count() -> int:
    """How often torchrun has restarted these processes."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


@contextlib.contextmanager
def lost_processes(out: Path) -> Iterator[None]:
    """When another process dies, the connection to it fails here; the error becomes one line with advice."""
    try:
        yield
    except RuntimeError as error:
        if not dist.is_available():
            raise
        several = os.environ.get("WORLD_SIZE", "1") != "1"  # the group itself may be gone by now
        lost = several and any(word in str(error) for word in ("gloo", "onnection", "NCCL"))
        if lost or isinstance(error, dist.DistError):
            raise PskdError(
                "another process of this run has ended, its own message says why;"
                f" continue with: --resume --out {out}, on as many processes as you like"
            ) from error
        raise
