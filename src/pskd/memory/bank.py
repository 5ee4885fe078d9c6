"""A bank of past predictions: one record for each training sample, no extra forward pass.

The record of a sample is the softmax of its training forward pass one epoch ago (train mode, augmented view, before the
optimizer step), as the paper's "save the past predictions" does it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from pskd.checks import ValueChecks, all_inside, at_hand
from pskd.door import Batch
from pskd.errors import PskdError
from pskd.memory.base import Memory
from pskd.memory.likeliest import top_classes
from pskd.memory.records import LAST_EPOCH, UNLABELLED, Record, Records
from pskd.settings import Count, Range, check_arguments
from pskd.targets import Past
from pskd.tensors import accumulation_dtype, to_device

_FORMAT = 2  # of a state; the first had a column for each field


class _Place(NamedTuple):
    """Where the records of positions (n) lie in the table, and which of them are read and written there."""

    rows: Tensor
    bad: Tensor | None  # an index that has no row; None: none is
    taken: Tensor | None  # distilled, not ignored, and with a row; None: all
    label: Tensor  # as a record holds it: (n), or (1) for all


class PredictionBank(Memory):
    """Records of past predictions in RAM, on a device, or in a memory-mapped file that the processes of a host share.

    Args:
        num_samples: records; ``index`` runs from 0 to num_samples - 1. Tokens are samples too.
        num_classes: classes of the model.
        form: "dense" keeps every class, "topk" the ``k`` likeliest; the rest of the mass is spread evenly when read.
            ``k >= num_classes`` is stored as dense.
        dtype: any floating type.
        path: a scratch file to map instead of RAM. It is made anew, unless another living process has it open, which
            then shares it; ``state_dict`` is what survives.
        device: where records held in memory live.
        fingerprint: identity of the data set (``Indexed(dataset).fingerprint``); a state filled for another is refused.
        host: which of ``hosts`` machines this is: the bank holds the samples i with ``i % hosts == host`` only.
        hosts: machines, each of which keeps the records of the samples that it trains on. With as many as there are
            processes, and host= the rank, each process keeps its own, without a file.
        max_age: epochs after which a record counts as missing, counted from when its sample was last in a batch; None
            serves records of any age.
        momentum: m in [0, 1): the values become ``m * values + (1 - m) * p``; the first record of a sample, and one
            that counts as missing, is p. 0 keeps the last prediction, the paper's. A top-k record stands for the whole
            distribution, its rest spread evenly; this is what is averaged, and the k likeliest classes of the mean are
            kept.

    Bytes of a record: ``num_classes * itemsize``, or ``k * (itemsize + 1, 2 or 4)``; plus 2 or 4 for the label, and 2
    for the epoch; rounded up to its largest number.
    """

    needs = "index"

    def __init__(
        self,
        num_samples: Count,
        num_classes: Count,
        form: Literal["dense", "topk"] = "dense",
        k: Count = 32,
        dtype: torch.dtype = torch.float16,
        path: str | Path | None = None,
        device: str | torch.device = "cpu",
        fingerprint: str | None = None,
        host: int = 0,
        hosts: int = 1,
        max_age: Annotated[int | None, Range(ge=0)] = 1,
        momentum: Annotated[float, Range(ge=0, lt=1)] = 0.0,
    ) -> None:
        check_arguments(PredictionBank.__init__, locals())
        if not dtype.is_floating_point:
            raise PskdError(f"dtype must be a floating type, got {dtype}")
        if path is not None and torch.device(device).type != "cpu":
            raise PskdError(f"path: a mapped file lives on the cpu, not on device {device}; give one of the two")
        if not 0 <= host < hosts:
            raise PskdError(f"host must lie in 0..hosts - 1, got host={host}, hosts={hosts}")
        self.num_samples, self.num_classes, self.dtype, self.fingerprint = num_samples, num_classes, dtype, fingerprint
        self.host, self.shards, self.max_age, self.momentum = host, hosts, max_age, momentum
        self._own = len(range(host, num_samples, hosts))
        self.form = "dense" if k >= num_classes else form
        self.k = num_classes if self.form == "dense" else k
        self._records = Records(self._own, num_classes, self.k, dtype, path, torch.device(device))
        self._checks = ValueChecks()
        self._used = self._begun = False
        # What changes from epoch to epoch is a tensor: compiled steps stay as they are.
        self._now, self._oldest = (torch.ones(1, dtype=torch.int16, device=device) for _ in range(2))
        self._travelling: list[tuple[torch.Event, Tensor, Tensor | None, Tensor]] = []

    @property
    def nbytes(self) -> int:
        """Bytes of all records, the spare one too."""
        return self._records.table.nbytes

    @property
    def device(self) -> torch.device:
        return self._records.table.device

    def to(self, device: str | torch.device) -> PredictionBank:
        self._settle()
        self._records.to(torch.device(device))
        self._now, self._oldest = self._now.to(self.device), self._oldest.to(self.device)
        return self

    def __repr__(self) -> str:
        return f"{super().__repr__()} of {self.nbytes:,} bytes"

    def start_epoch(self, epoch: int) -> None:
        self._settle()
        if not self._begun:
            self._check_processes()
        self._begun = True
        self._set_epoch(epoch)

    def _set_epoch(self, epoch: int) -> None:
        """A record holds its epoch + 1, since 0 says that it is empty; it counts from ``oldest`` on."""
        now = min(epoch, LAST_EPOCH) + 1
        self._now.fill_(now)
        self._oldest.fill_(1 if self.max_age is None else max(1, now - self.max_age))

    def _check_processes(self) -> None:
        """Raise where another process trains on samples whose records are here: it would never see them."""
        world = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
        here, hosts = int(os.environ.get("LOCAL_WORLD_SIZE", world)), int(os.environ.get("GROUP_WORLD_SIZE", 1))
        if world == self.shards:
            return  # each process has its own samples
        if world > 1 and ((here > 1 and not self._records.is_mapped) or (hosts > 1 and self.shards == 1)):
            raise PskdError(
                f"memory: {world} processes train, each with a bank of its own: give path=FILE, which those of a host"
                " share, on several hosts also host= and hosts= with a sampler that keeps each sample on its host, or"
                " take pskd.Snapshot"
            )

    def key(self, *, index: Any = None, inputs: Any = None) -> Tensor:
        """The indices of a step's samples, as a tensor."""
        if index is None:
            raise PskdError("index is missing: with a PredictionBank, call with index=...")
        if self._travelling:
            self._settle()
        return _as_index(index)

    def read(self, key: Tensor, batch: Batch) -> Past:
        place = self._rows(key, batch)
        record = self._records.read(place.rows, batch.log_p)
        known = record.epoch >= self._oldest.to(record.epoch.device, non_blocking=True)
        known = known if place.taken is None else known & place.taken
        if batch.labels is not None and not (at_hand(record.label) and torch.equal(record.label, place.label)):
            # Of two classes that differ the xor is positive; of UNLABELLED, which is -1, and a class it is negative.
            batch.checks.require_none(
                (record.label ^ place.label > 0) & known,
                lambda count: (
                    f"index: {count} samples had another label when the bank was filled; the data set was changed"
                    " or reordered: give each sample the index it had, or start with an empty bank"
                ),
            )
        return Past(record.values, record.classes, known, record.values.sum(1, dtype=batch.log_p.dtype), place)

    def write(self, key: Tensor, batch: Batch, log_p: Tensor | None = None, past: Past | None = None) -> None:
        if past is None and self.momentum:
            past = self.read(key, batch)
        place = self._rows(key, batch) if past is None else past.place
        log_p = batch.log_p if log_p is None else log_p
        if self.momentum and past is not None:
            log_p = past.averaged_with(log_p.exp(), self.momentum).log()
        if self.form == "topk":
            classes = top_classes(log_p, self.k)
            values = log_p.gather(1, classes).exp_()
        else:
            # In proportion to the softmax, the largest 1: so no type is too small for a record.
            classes, p = None, batch.p if log_p is batch.log_p else None
            values = (log_p - log_p.amax(1, keepdim=True)).exp_() if p is None else p / p.amax(1, keepdim=True)
        values = values.to(self.dtype)  # here, so that nothing wider is kept
        keep = place.taken
        if batch.failed is not None:  # a bad step must not spoil the next epoch
            keep = ~batch.failed if keep is None else keep > batch.failed
        records = self._records.pack(values, classes, place.label, self._now.to(log_p.device, non_blocking=True))
        self._used = True
        if batch.distilled is not None:
            # Samples that are left out on purpose were seen too: their records stay, and stay recent.
            rows = place.rows if place.bad is None else torch.where(place.bad, self._own, place.rows)
            self._records.refresh(rows, self._now)
        if records.device == place.rows.device:
            self._records.write(place.rows, keep, records)
            return
        # The records travel while the accelerator goes on, and are written when the bank is asked next.
        records = records.to(self.device, non_blocking=True)
        keep = None if keep is None else keep.to(self.device, non_blocking=True)
        event = torch.Event(log_p.device)
        event.record()
        self._travelling.append((event, place.rows, keep, records))

    def clear(self) -> None:
        """Forget every record."""
        self._travelling = []
        if self._used:  # a new bank is empty, and its memory not even touched
            self._records.clear()
        self._used = False

    def known(self, index: Tensor) -> Tensor:
        """Which of the samples ``index`` (n) have a record that counts in this epoch."""
        return self._look(index).epoch >= self._oldest

    def probabilities(self, index: Tensor) -> Tensor:
        """What is recorded of the samples ``index`` (n), as (n, num_classes); 0 where there is nothing."""
        record = self._look(index)
        past = Past(record.values, record.classes, mass=record.values.sum(1))
        return past.probabilities(self.num_classes) * (record.epoch > 0)[:, None]

    def _look(self, index: Tensor) -> Record:
        self._settle()
        like = torch.empty((), dtype=accumulation_dtype(self.dtype), device=self.device)
        return self._records.read(_as_index(index).to(self.device) // self.shards, like)

    def state_dict(self) -> dict[str, Any]:
        """This host's records and what they were made for; the table is a view, so save it before the next step."""
        self._settle()
        where = {"format": _FORMAT, "host": self.host, "hosts": self.shards}
        return {**self._description(), **where, "records": self._records.table[: self._own]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take those records of a state that belong here: what several hosts saved is loaded shard by shard."""
        if "records" not in state and "rows" not in state:
            raise PskdError(
                "state: it is not that of a PredictionBank, which has records; use the memory that was saved"
            )
        for name, here in self._description().items():
            there = state.get(name)
            if there != here and not (name == "fingerprint" and None in (there, here)):
                what = "another or a reordered data set" if name in ("fingerprint", "num_samples") else "other settings"
                raise PskdError(f"{name}: the stored bank was filled for {what} ({there!r}, here {here!r})")
        host, hosts = state.get("host", 0), state.get("hosts", 1)
        count = len(range(host, self.num_samples, hosts))
        records = self._checked_records(state, count)
        self._travelling = []
        self._used = True
        if (host, hosts) == (self.host, self.shards):
            self._records.table[: self._own].copy_(records)
            return
        samples = torch.arange(count) * hosts + host
        here = torch.nonzero(samples % self.shards == self.host).flatten()
        rows = samples[here] // self.shards
        self._records.write(rows.to(self.device), None, records[here].to(self.device))

    def _checked_records(self, state: dict[str, Any], count: int) -> Tensor:
        """What is read back are records of this bank, ``count`` of them, or it is refused."""
        if "rows" in state:  # of 0.2.0 and before
            return self._records.of_columns(state["rows"], count)
        records: Tensor = state["records"]
        there, here = (records.shape, records.dtype), ((count, self._records.table.shape[1]), self._records.table.dtype)
        if there != here:
            raise PskdError(f"records: the stored bank has {there}, here {here} are needed; it is damaged")
        return records

    def _description(self) -> dict[str, Any]:
        return {
            "num_samples": self.num_samples,
            "num_classes": self.num_classes,
            "form": self.form,
            "k": self.k,
            "dtype": str(self.dtype).removeprefix("torch."),
            "fingerprint": self.fingerprint,
        }

    def _rows(self, key: Tensor, batch: Batch) -> _Place:
        """Where the records of the batch's samples lie; those that others may not have are reported."""
        if batch.logits.shape[1] != self.num_classes:
            raise PskdError(
                f"logits have {batch.logits.shape[1]} classes, but the bank was made for {self.num_classes}"
            )
        if tuple(key.shape) != batch.positions:
            hint = "" if len(batch.positions) == 1 else "; for dense predictions use memory=pskd.Snapshot(model)"
            raise PskdError(
                f"index has shape {tuple(key.shape)}, but the logits want one per label, {batch.positions}{hint}"
            )
        index = key.reshape(-1) if batch.part is None else batch.part.of(key)
        if index.device != self._now.device or index.dtype != torch.int64:
            index = to_device(index, self._now.device).long()
        bad, taken = None, batch.taken
        if not all_inside(index, self.num_samples):
            inside = index.clamp(0, self.num_samples - 1)
            bad, index = inside != index, inside
            taken = self._report(
                bad,
                batch,
                f"lie outside 0..{self.num_samples - 1}; the bank's num_samples is too small, or this is not the data"
                " set it was made for",
            )
        if self.shards > 1:
            foreign = index % self.shards != self.host
            here = f"index % {self.shards} == {self.host}"
            own = self._report(foreign, batch, f"belong to another host; here are those with {here}")
            bad, taken = (foreign, own) if bad is None or taken is None else (bad | foreign, taken & own)
            index = (index // self.shards).clamp_max(self._own)
        label = torch.full_like(self._now, UNLABELLED) if batch.labels is None else batch.labels
        return _Place(index, bad, taken, label.to(self._records.label.dtype))

    def _report(self, bad: Tensor, batch: Batch, why: str) -> Tensor:
        """Report the samples that are taken though they are ``bad`` (n); returns those that remain."""
        bad = to_device(bad, batch.log_p.device)
        wrong = bad if batch.taken is None else batch.taken & bad
        batch.checks.require_none(wrong, lambda count: f"index: {count} {why}")
        return ~bad if batch.taken is None else batch.taken > bad

    def _settle(self) -> None:
        """Store records that were on their way."""
        while self._travelling:
            event, rows, keep, records = self._travelling.pop(0)
            event.synchronize()
            self._records.write(rows, keep, records)


def _as_index(key: Any) -> Tensor:
    """Sample indices as a tensor of integers; lists and numpy arrays are converted."""
    try:
        index: Tensor = key if isinstance(key, Tensor) else torch.as_tensor(key)
    except (TypeError, ValueError, RuntimeError) as error:
        raise PskdError(f"index must be a tensor of integers, got {type(key).__name__}: {error}") from error
    if index.is_floating_point() or index.is_complex() or index.dtype == torch.bool:
        raise PskdError(f"index must be integers, got {index.dtype}")
    return index
