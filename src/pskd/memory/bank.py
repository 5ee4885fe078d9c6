"""A bank of past predictions: one row per training sample, no extra forward pass.

The row of a sample is the softmax of its training forward pass one epoch ago (train mode, augmented view, before the
optimizer step), as the paper's "save the past predictions" does it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from pskd.checks import ValueChecks, at_hand, outside
from pskd.errors import PskdError
from pskd.fused import log_likelihood
from pskd.memory.base import Memory, MemoryStep
from pskd.memory.likeliest import top_classes
from pskd.memory.storage import Storage
from pskd.settings import Count, Range, check_arguments
from pskd.targets import Past
from pskd.tensors import accumulation_dtype, to_device

_UNLABELLED = -1
_UNKNOWN_EPOCH, _LAST_EPOCH = -1, 2**15 - 1
# Rows are moved as plain integers of their size, since not every operation knows every floating type.
_RAW = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class _Recalled(NamedTuple):
    """What a recall has found: the rows (n) of the samples ``key``, and what they held."""

    key: Tensor
    take: Tensor | None
    rows: Tensor
    past: Past | None


class PredictionBank(Memory):
    """Rows of past predictions in RAM, on a device, or in a memory-mapped file that the processes of a host share.

    Args:
        num_samples: rows; ``index`` runs from 0 to num_samples - 1. Tokens are samples too.
        num_classes: classes of the model.
        form: "dense" keeps every class, "topk" the ``k`` likeliest; the rest of the mass is spread evenly when read.
            ``k >= num_classes`` is stored as dense.
        dtype: any floating type.
        path: a scratch file to map instead of RAM. It is made anew, unless another living process has it open, which
            then shares it; ``state_dict`` is what survives.
        device: where rows held in memory live.
        fingerprint: identity of the data set (``Indexed(dataset).fingerprint``); a state filled for another is refused.
        host: which of ``hosts`` machines this is: the bank holds the samples i with ``i % hosts == host`` only.
        hosts: machines, each of which keeps the rows of the samples that it trains on.
        max_age: epochs after which a row counts as missing, counted from when its sample was last in a batch; None
            serves rows of any age.
        momentum: m in [0, 1): a row becomes ``m * row + (1 - m) * p``; the first record of a sample, and one whose row
            counts as missing, sets it to p. 0 keeps the last prediction, the paper's. A top-k row stands for the
            whole distribution that ``recall`` reads from it, its rest spread evenly; this is what is averaged, and the
            k likeliest classes of the mean are kept.

    Bytes per sample: ``num_classes * itemsize``, or ``k * (itemsize + 1, 2 or 4)``; plus 2 or 4 for the label, and 2
    for the epoch.
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

        # Everything starts as zero bytes, which cost nothing until a row is written: label column 0 means "no row
        # yet", c + 1 a row of class c. The last row is spare: it takes what is not to be kept.
        columns = {"values": (self.k, _RAW[dtype.itemsize])}
        if self.form == "topk":
            # Two bytes hold 65,536 classes: read back without their sign.
            class_type = torch.uint8 if num_classes <= 256 else torch.int16 if num_classes <= 65536 else torch.int32
            columns["classes"] = (k, class_type)
        columns["labels"] = (1, torch.int16 if num_classes < 2**15 else torch.int32)
        columns["epochs"] = (1, torch.int16)
        self._storage = Storage(self._own + 1, columns, path=path, device=torch.device(device))
        self._shared = path is not None
        self._epoch: int | None = None  # None before start_epoch
        self._used = False
        self._all_recent = True  # whether no row is too old in this epoch
        self._found: _Recalled | None = None
        self._checks = ValueChecks()
        self._arriving: tuple[torch.Event, tuple[Tensor, Tensor | None, dict[str, Tensor]]] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all rows, the spare one too."""
        return self._storage.nbytes

    @property
    def device(self) -> torch.device:
        return self._storage.device

    def __repr__(self) -> str:
        return f"{super().__repr__()} of {self.nbytes:,} bytes"

    def start_epoch(self, epoch: int) -> None:
        self._settle()
        if self._epoch is None:
            self._check_processes()
        self._epoch = epoch
        # Looked at once an epoch: rows only become more recent in it, so where all are, no step has to look.
        self._all_recent = self._oldest is None or int(self._storage.rows(self._own)["epochs"].min()) >= self._oldest

    def _check_processes(self) -> None:
        """Raise where another process trains on samples whose rows are here: it would never see them."""
        world = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
        here, hosts = int(os.environ.get("LOCAL_WORLD_SIZE", world)), int(os.environ.get("GROUP_WORLD_SIZE", 1))
        if world > 1 and ((here > 1 and not self._shared) or (hosts > 1 and self.shards == 1)):
            raise PskdError(
                f"memory: {world} processes train, each with a bank of its own: give path=FILE, which those of a host"
                " share, on several hosts also host= and hosts= with a sampler that keeps each sample on its host, or"
                " take pskd.Snapshot"
            )

    def step(self, key: Any, *, recalls: bool) -> MemoryStep:
        return super().step(_as_index(key), recalls=recalls)

    def check(self, key: Tensor, logits: Tensor) -> None:
        key = _as_index(key)
        positions = (logits.shape[0], *logits.shape[2:])
        if logits.shape[1] != self.num_classes:
            raise PskdError(f"logits have {logits.shape[1]} classes, but the bank was made for {self.num_classes}")
        if tuple(key.shape) != positions:
            hint = "" if logits.ndim == 2 else "; for dense predictions of images use memory=pskd.Snapshot(model)"
            raise PskdError(f"index has shape {tuple(key.shape)}, but the logits want one per label, {positions}{hint}")

    def recall(self, key: Tensor, *, labels: Tensor | None = None, take: Tensor | None = None) -> Past:
        """The rows of the samples ``key`` (B, ...) as float32 or wider, dense ones renormalised."""
        self._settle()
        key = _as_index(key)
        index = self._rows(key, take)
        past = self._past(key, index, labels, take)
        self._found = _Recalled(key, take, index, past)
        return past

    def _past(self, key: Tensor, index: Tensor, labels: Tensor | None, take: Tensor | None) -> Past:
        known = self._known(self._storage.read("labels", index).view(key.shape), labels, take)
        if (recent := self._recent(index)) is not None:
            recent = recent.view(key.shape)
            known = recent if known is None else known & recent
        values = self._storage.read("values", index).view(self.dtype).to(accumulation_dtype(self.dtype))
        if self.form == "dense":
            values.div_(values.sum(1, keepdim=True).clamp_min(1))  # a row sums to at least 1, or there is none
            return Past(_classes_second(values, key.shape), None, known)
        classes = self._storage.read("classes", index).long()
        classes = classes & 0xFFFF if self.num_classes <= 65536 else classes
        return Past(_classes_second(values, key.shape), _classes_second(classes, key.shape), known)

    def record(
        self,
        key: Tensor,
        logits: Tensor,
        *,
        labels: Tensor | None = None,
        take: Tensor | None = None,
        normalised: bool = False,
    ) -> None:
        """Write the softmax of logits (B, K, ...). Of an index that stands twice in the batch, the last one is kept."""
        self._settle()
        key = _as_index(key)
        found, self._found = self._found, None
        if found is None or found.key is not key or found.take is not take:  # not just recalled by the same step
            found = _Recalled(key, take, self._rows(key, take), None)
        log_p = logits.detach().to(accumulation_dtype(logits.dtype))
        if not normalised and (self.momentum or self.form == "topk"):
            log_p = log_likelihood(log_p)
        if self.momentum:
            past = self._past(key, found.rows, labels, take) if found.past is None else found.past
            log_p = past.to(log_p.device).averaged_with(log_p.exp(), self.momentum).log_()
        if log_p.ndim > 2:
            log_p = log_p.movedim(1, -1).reshape(-1, self.num_classes)
        columns = {}
        if self.form == "topk":
            columns["classes"] = top_classes(log_p, self.k)
            likely = log_p.gather(1, columns["classes"]).exp_()
            take = self._finite(likely[:, 0], take)
        else:
            # In proportion to the softmax, the largest 1: so no type is too small for a row.
            largest = log_p.amax(1, keepdim=True)
            take = self._finite(largest[:, 0], take)
            likely = (log_p - largest).exp_()
        columns["values"] = likely.to(self.dtype).view(_RAW[self.dtype.itemsize])
        columns["labels"] = (
            torch.full_like(likely[:, :1], _UNLABELLED) if labels is None else labels.long().reshape(-1, 1) + 1
        )
        columns = {name: part.to(self.device, non_blocking=True) for name, part in columns.items()}
        kept = None if take is None else take.flatten().to(self.device, non_blocking=True)
        self._used = True
        if logits.device.type == "cpu" or logits.device == self.device:
            self._write(found.rows, kept, columns)
            return
        # The rows travel to the host while the accelerator goes on, and are written when the bank is asked next.
        event = torch.Event(logits.device)
        event.record()
        self._arriving = event, (found.rows, kept, columns)

    def _finite(self, witness: Tensor, take: Tensor | None) -> Tensor | None:
        """``take`` without the rows whose ``witness`` is not finite: a bad step must not spoil the next epoch."""
        finite = torch.isfinite(witness)
        if at_hand(finite) and bool(finite.all()):
            return take
        return finite if take is None else to_device(take, finite.device).flatten() & finite

    def clear(self) -> None:
        """Forget every row."""
        self._arriving = None
        if self._used:  # a new bank is empty, and its memory not even touched
            self._storage.clear()
        self._used = False

    def state_dict(self) -> dict[str, Any]:
        """This host's rows and what they were made for; the tensors are views, so save them before the next step."""
        self._settle()
        rows = self._storage.rows(self._own)
        return {**self._description(), "host": self.host, "hosts": self.shards, "rows": rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take those rows of a state that belong here: what several hosts saved is loaded shard by shard."""
        if "rows" not in state:
            raise PskdError("state: it is not that of a PredictionBank, which has rows; use the memory that was saved")
        for name, here in self._description().items():
            there = state.get(name)
            if there != here and not (name == "fingerprint" and None in (there, here)):
                what = "another or a reordered data set" if name in ("fingerprint", "num_samples") else "other settings"
                raise PskdError(f"{name}: the stored bank was filled for {what} ({there!r}, here {here!r})")
        rows, host, hosts = state["rows"], state.get("host", 0), state.get("hosts", 1)
        count = len(range(host, self.num_samples, hosts))
        if "epochs" not in rows:  # an older version's
            rows = {**rows, "epochs": torch.full((count, 1), _UNKNOWN_EPOCH, dtype=torch.int16)}
        self._check_rows(rows, count)
        self._arriving = None
        self._used = True
        if (host, hosts) == (self.host, self.shards):
            self._storage.load(rows)
            return
        samples = torch.arange(count) * hosts + host
        here = torch.nonzero(samples % self.shards == self.host).flatten()
        self._storage.write(
            (samples[here] // self.shards).to(self.device),
            {name: part[here].to(self.device) for name, part in rows.items()},
        )

    def _check_rows(self, rows: Any, count: int) -> None:
        """What is read back has the columns of this bank, ``count`` rows of each, or it is refused."""
        wanted = {name: (count, *column.shape[1:], column.dtype) for name, column in self._storage.rows(0).items()}
        found = {name: (*part.shape, part.dtype) for name, part in rows.items()}
        if found != wanted:
            raise PskdError(f"rows: the stored bank has {found}, here {wanted} are needed; it is damaged")

    def _description(self) -> dict[str, Any]:
        return {
            "num_samples": self.num_samples,
            "num_classes": self.num_classes,
            "form": self.form,
            "k": self.k,
            "dtype": str(self.dtype).removeprefix("torch."),
            "fingerprint": self.fingerprint,
        }

    def _rows(self, key: Tensor, take: Tensor | None) -> Tensor:
        """The rows of the samples ``key``, flat and on the bank's device; an index out of range means the spare row."""
        index = key.to(self.device, torch.int64).flatten()
        if (wrong := outside(index, self.num_samples)) is not None:
            self._refuse(
                wrong,
                take,
                f"lie outside 0..{self.num_samples - 1}; the bank's num_samples is too small,"
                " or this is not the data set it was made for",
            )
            index = torch.where(wrong, self.host, index)
        if self.shards > 1:
            foreign = index % self.shards != self.host
            here = f"index % {self.shards} == {self.host}"
            self._refuse(foreign, take, f"belong to another host; here are those with {here}")
            wrong = foreign if wrong is None else wrong | foreign
            index = index // self.shards
        return index if wrong is None else torch.where(wrong, self._own, index)

    def _refuse(self, wrong: Tensor, take: Tensor | None, why: str) -> None:
        taken = wrong if take is None else to_device(wrong, take.device) & take.flatten()
        self._checks.require_none(taken, lambda count: f"index: {count} {why}")

    def _known(self, column: Tensor, labels: Tensor | None, take: Tensor | None) -> Tensor | None:
        """Which samples have a row, None meaning all; a row that was written for another class is reported."""
        if labels is not None:
            # Compared where the labels are, so that nothing has to wait.
            then, now = to_device(column, labels.device), labels.long() + 1
            if at_hand(then) and torch.equal(then, now.to(then.dtype)):
                return None
            changed = (then > 0) & (then != now)
            self._checks.require_none(
                changed if take is None else changed & take,
                lambda count: (
                    f"index: {count} samples had another label when the bank was filled; the data set was changed"
                    " or reordered: give each sample the index it had, or start with an empty bank"
                ),
            )
        return column != 0

    @property
    def _oldest(self) -> int | None:
        """The epoch that a row must be of at least; None: any will do."""
        epoch = self._epoch or 0
        return None if self.max_age is None or epoch <= self.max_age else min(epoch, _LAST_EPOCH) - self.max_age

    def _recent(self, index: Tensor) -> Tensor | None:
        """Which rows ``index`` (n) are not too old, None meaning all."""
        if self._all_recent or (oldest := self._oldest) is None:
            return None
        epochs = self._storage.read("epochs", index)[:, 0]
        return (epochs >= oldest) | (epochs == _UNKNOWN_EPOCH)

    def _write(self, index: Tensor, kept: Tensor | None, columns: dict[str, Tensor]) -> None:
        # Samples that are left out on purpose were seen too: their rows stay, and stay recent.
        self._storage.fill("epochs", index, min(self._epoch or 0, _LAST_EPOCH))
        if kept is not None:
            index = torch.where(kept, index, self._own)
        # Two writes of one row in one step come in no order. So all copies of an index carry the last one's values.
        if not at_hand(index) or self._repeats(index):
            ranked, order = torch.sort(index, stable=True)
            last = order[torch.searchsorted(ranked, index, right=True) - 1]
            columns = {name: part[last] for name, part in columns.items()}
        self._storage.write(index, columns)

    def _repeats(self, index: Tensor) -> bool:
        """Whether a row stands twice in ``index`` (n); the spare one may, since nobody reads it."""
        spare = int((index == self._own).sum())
        return len(torch.unique(index)) + max(0, spare - 1) < len(index)

    def _settle(self) -> None:
        """Report what a check has found, and write rows that were on their way from an accelerator."""
        self._checks.settle()
        if self._arriving is not None:
            event, rows = self._arriving
            self._arriving = None
            event.synchronize()
            self._write(*rows)


def _as_index(key: Any) -> Tensor:
    """Sample indices as a tensor of integers; lists and numpy arrays are converted."""
    try:
        index: Tensor = key if isinstance(key, Tensor) else torch.as_tensor(key)
    except (TypeError, ValueError, RuntimeError) as error:
        raise PskdError(f"index must be a tensor of integers, got {type(key).__name__}: {error}") from error
    if index.is_floating_point() or index.is_complex() or index.dtype == torch.bool:
        raise PskdError(f"index must be integers, got {index.dtype}")
    return index


def _classes_second(rows: Tensor, positions: torch.Size) -> Tensor:
    """Rows (n, width) of n positions (B, d1, ...) as (B, width, d1, ...)."""
    return rows if len(positions) == 1 else rows.view(*positions, rows.shape[1]).movedim(-1, 1)
