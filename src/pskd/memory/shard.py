"""Which samples are on which host, and where their records lie: host h of H has the samples i with ``i % H == h``."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from pskd.checks import all_inside
from pskd.door import Batch
from pskd.errors import PskdError
from pskd.tensors import to_device


class RecordPlace(NamedTuple):
    """Where the records of positions (n) lie in the table, and which of them are read and written there."""

    rows: Tensor
    bad: Tensor | None  # an index that has no record; None: none is
    valid: Tensor | None  # distilled, not ignored, and with a record; None: all

    def every_row(self, spare: int) -> Tensor:
        """All rows, of an index that has none the spare one."""
        return self.rows if self.bad is None else torch.where(self.bad, spare, self.rows)


class Shard:
    """The samples of one of several hosts, in the order of their records."""

    def __init__(self, num_samples: int, host: int = 0, hosts: int = 1) -> None:
        if not 0 <= host < hosts:
            raise PskdError(f"host must lie in 0..hosts - 1, got host={host}, hosts={hosts}")
        self.num_samples, self.host, self.hosts = num_samples, host, hosts
        self.count = len(range(host, num_samples, hosts))

    def check_processes(self, is_mapped: bool) -> None:
        """Raise where another process trains on samples whose records are here: it would never see them."""
        world = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
        here, hosts = int(os.environ.get("LOCAL_WORLD_SIZE", world)), int(os.environ.get("GROUP_WORLD_SIZE", 1))
        if world == self.hosts:
            return  # each process has its own samples
        if world > 1 and ((here > 1 and not is_mapped) or (hosts > 1 and self.hosts == 1)):
            raise PskdError(
                f"memory: {world} processes train, each with a bank of its own: give path=FILE, which those of a host"
                " share, on several hosts also host= and hosts= with a sampler that keeps each sample on its host, or"
                " take pskd.Snapshot"
            )

    def place(self, key: Tensor, batch: Batch, device: torch.device) -> RecordPlace:
        """Where the records of the samples ``key`` lie; an index that is not here is reported."""
        if tuple(key.shape) != batch.positions:
            hint = "" if len(batch.positions) == 1 else "; for dense predictions use memory=pskd.Snapshot(model)"
            raise PskdError(
                f"index has shape {tuple(key.shape)}, but the logits want one per label, {batch.positions}{hint}"
            )
        index = key.reshape(-1) if batch.part is None else batch.part.of(key)
        if index.device != device or index.dtype != torch.int64:
            index = to_device(index, device).long()
        bad, valid = None, batch.valid
        if not all_inside(index, self.num_samples):
            inside = index.clamp(0, self.num_samples - 1)
            bad, index = inside != index, inside
            valid = _report(
                bad,
                batch,
                f"lie outside 0..{self.num_samples - 1}; the bank's num_samples is too small, or this is not the data"
                " set it was made for",
            )
        if self.hosts > 1:
            foreign = index % self.hosts != self.host
            here = f"index % {self.hosts} == {self.host}"
            own = _report(foreign, batch, f"belong to another host; here are those with {here}")
            bad, valid = (foreign, own) if bad is None or valid is None else (bad | foreign, valid & own)
            index = (index // self.hosts).clamp_max(self.count)
        return RecordPlace(index, bad, valid)

    def common_rows(self, other: Shard) -> tuple[Tensor | slice, Tensor | slice]:
        """The rows here, and the rows there, of the samples that both have."""
        if (self.host, self.hosts) == (other.host, other.hosts):
            return slice(self.count), slice(self.count)
        samples = torch.arange(self.num_samples)[self.host :: self.hosts]
        samples = samples[samples % other.hosts == other.host]
        return samples // self.hosts, samples // other.hosts


def _report(bad: Tensor, batch: Batch, why: str) -> Tensor:
    """Report valid positions whose index is ``bad`` (n); returns the mask (n) of the others."""
    bad = to_device(bad, batch.log_p.device)
    wrong = bad if batch.valid is None else batch.valid & bad
    batch.checks.require_none(wrong, lambda count: f"index: {count} {why}")
    return ~bad if batch.valid is None else batch.valid > bad


def as_index(key: Any) -> Tensor:
    """Sample indices as a tensor of integers; lists and numpy arrays are converted."""
    try:
        index: Tensor = key if isinstance(key, Tensor) else torch.as_tensor(key)
    except (TypeError, ValueError, RuntimeError) as error:
        raise PskdError(f"index must be a tensor of integers, got {type(key).__name__}: {error}") from error
    if index.is_floating_point() or index.is_complex() or index.dtype == torch.bool:
        raise PskdError(f"index must be integers, got {index.dtype}")
    return index
