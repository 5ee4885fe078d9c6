"""A bank of past predictions: one record for each training sample, no extra forward pass.

The record of a sample is the softmax of its training forward pass one epoch ago (train mode, augmented view, before the
optimizer step), as the paper's "save the past predictions" does it. `records.py` is where records lie, `shard.py` which
of them are here when several hosts train.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from pskd.checks import at_hand
from pskd.door import Batch
from pskd.errors import PskdError
from pskd.memory.base import Memory
from pskd.memory.records import LAST_EPOCH, UNLABELLED, Record, Records
from pskd.memory.shard import RecordPlace, Shard, as_index
from pskd.settings import Count, Range, check_arguments
from pskd.targets import Past
from pskd.tensors import accumulation_dtype

FORMAT = 2  # of a state; the first had a column for each field


class PredictionBank(Memory):
    """Records of past predictions in RAM, on a device, or in a memory-mapped file that the processes of a host share.

    Args:
        num_samples: records; ``index`` runs from 0 to num_samples - 1. Tokens are samples too.
        num_classes: classes of the model.
        form: "dense" keeps every class, "topk" the ``k`` likeliest; the rest of the mass is spread evenly when read.
            ``k >= num_classes`` is stored as dense.
        dtype: any floating type.
        path: a scratch file to map instead of RAM. It is emptied, unless another living process has it open, which
            then shares it; ``state_dict`` is what survives.
        device: where records held in memory live.
        fingerprint: identity of the data set (``Indexed(dataset).fingerprint``); a state filled for another is refused.
        host: which of ``hosts`` machines this is: the bank holds the samples i with ``i % hosts == host`` only.
        hosts: machines, each of which keeps the records of the samples that it trains on. With as many as there are
            processes, and host= the rank, each process keeps and saves its own, without a file.
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
        num_samples: Annotated[int, Range(ge=1)],
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
        self.num_samples, self.num_classes, self.dtype, self.fingerprint = num_samples, num_classes, dtype, fingerprint
        self.host, self.shards, self.max_age, self.momentum = host, hosts, max_age, momentum
        self.form = "dense" if k >= num_classes else form
        self.k = num_classes if self.form == "dense" else k
        self._shard = Shard(num_samples, host, hosts)
        self._records = Records(self._shard.count, num_classes, self.k, dtype, path, torch.device(device))
        self._used = self._begun = False
        # What changes from epoch to epoch is a tensor: compiled steps stay as they are.
        self._now, self._oldest = (torch.ones(1, dtype=torch.int16, device=device) for _ in range(2))

    @property
    def nbytes(self) -> int:
        """Bytes of all records, the spare one too."""
        return self._records.table.nbytes

    @property
    def device(self) -> torch.device:
        return self._records.table.device

    def to(self, device: str | torch.device) -> PredictionBank:
        self._records.to(torch.device(device))
        self._now, self._oldest = self._now.to(self.device), self._oldest.to(self.device)
        return self

    def __repr__(self) -> str:
        return f"{super().__repr__()} of {self.nbytes:,} bytes"

    def start_epoch(self, epoch: int) -> None:
        """A record holds its epoch + 1, since 0 means that it is empty; it counts from ``oldest`` on."""
        self._records.settle()
        if not self._begun:
            self._shard.check_processes(self._records.is_mapped)
        self._begun = True
        now = min(epoch, LAST_EPOCH) + 1
        self._now.fill_(now)
        self._oldest.fill_(1 if self.max_age is None else max(1, now - self.max_age))

    def key(self, *, index: Any = None, inputs: Any = None) -> Tensor:
        """The indices of a step's samples, as a tensor."""
        if index is None:
            raise PskdError("index is missing: with a PredictionBank, call with index=...")
        if self._records.travelling:
            self._records.settle()
        return as_index(index)

    def read(self, key: Tensor, batch: Batch) -> Past:
        place, label = self._place(key, batch)
        record = self._records.read(place.rows, batch.log_p)
        known = record.epoch >= self._oldest.to(record.epoch.device, non_blocking=True)
        known = known if place.valid is None else known & place.valid
        if batch.labels is not None and not (at_hand(record.label) and torch.equal(record.label, label)):
            # Of two classes that differ the xor is positive; of UNLABELLED, which is -1, and a class it is negative.
            batch.checks.require_none(
                (record.label ^ label > 0) & known,
                lambda count: (
                    f"index: {count} samples had another label when the bank was filled; the data set was changed"
                    " or reordered: give each sample the index it had, or start with an empty bank"
                ),
            )
        return Past(record.values, record.classes, known, record.values.sum(1, dtype=batch.log_p.dtype), (place, label))

    def write(self, key: Tensor, batch: Batch, log_p: Tensor | None = None, past: Past | None = None) -> None:
        past = self.read(key, batch) if past is None and self.momentum else past
        place, label = self._place(key, batch) if past is None else past.place
        p, log_p = (batch.p, batch.log_p) if log_p is None else (None, log_p)
        if self.momentum and past is not None:
            p, log_p = None, past.averaged_with(log_p.exp(), self.momentum).log()
        records = self._records.pack_prediction(log_p, p, label, self._now.to(log_p.device, non_blocking=True))
        keep = place.valid
        if batch.failed is not None:  # a bad step must not spoil the next epoch
            keep = ~batch.failed if keep is None else keep > batch.failed
        self._used = True
        if batch.distilled is not None:  # samples that are left out were seen too: their records stay, and stay recent
            self._records.refresh(place.every_row(self._records.count), self._now)
        self._records.write(place.rows, keep, records)

    def clear(self) -> None:
        """Forget every record."""
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

    def state_dict(self) -> dict[str, Any]:
        """This host's records and what they were made for; the table is a view, so save it before the next step."""
        self._records.settle()
        where = {"format": FORMAT, "host": self.host, "hosts": self.shards}
        return {**self._description(), **where, "records": self._records.table[: self._records.count]}

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
        saved = Shard(self.num_samples, state.get("host", 0), state.get("hosts", 1))
        if "rows" in state:  # of 0.2.0 and before
            records = self._records.of_columns(state["rows"], saved.count)
        else:
            records = self._records.checked(state["records"], saved.count)
        self._used = True
        there, here = saved.common_rows(self._shard)
        self._records.put(here, records[there])

    def _description(self) -> dict[str, Any]:
        return {
            "num_samples": self.num_samples,
            "num_classes": self.num_classes,
            "form": self.form,
            "k": self.k,
            "dtype": str(self.dtype).removeprefix("torch."),
            "fingerprint": self.fingerprint,
        }

    def _place(self, key: Tensor, batch: Batch) -> tuple[RecordPlace, Tensor]:
        """Where the records of the batch's samples lie, and their labels as a record holds them, (n) or (1) for all."""
        if batch.logits.shape[1] != self.num_classes:
            raise PskdError(
                f"logits have {batch.logits.shape[1]} classes, but the bank was made for {self.num_classes}"
            )
        place = self._shard.place(key, batch, self._now.device)
        label = torch.full_like(self._now, UNLABELLED) if batch.labels is None else batch.labels
        return place, label.to(self._records.label.dtype)

    def _look(self, index: Tensor) -> Record:
        self._records.settle()
        like = torch.empty((), dtype=accumulation_dtype(self.dtype), device=self.device)
        return self._records.read(as_index(index).to(self.device) // self.shards, like)
