"""The records of a bank: one row of a table for each sample, in RAM, on a device or in a mapped file.

The fields of a record lie side by side, each aligned to its own size: the values, of the top k their classes, the label
and the epoch. So reading is one gather, writing one scatter. A record of zero bytes is an empty one: everything starts
as zero bytes, which cost nothing until a record is written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pskd.checks import at_hand
from pskd.errors import PskdError
from pskd.memory.likeliest import top_classes
from pskd.memory.mapped import map_file
from pskd.tensors import to_device

UNLABELLED = -1
_LARGEST_BATCH = 2**14  # of positions, for which their numbers are kept
_SMALL = 2**16  # bytes that CUDA copies without waiting from any memory
LAST_EPOCH = 2**15 - 3  # later epochs count as this one
_ANY_EPOCH = 2**15 - 1  # of a record that is never too old
# Records are moved as whole numbers of the size of their largest field.
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Field(NamedTuple):
    """Where a field stands in a record, counted in numbers of its own type."""

    dtype: torch.dtype
    place: slice | int

    def of(self, records: Tensor) -> Tensor:
        """A view of the field, (n, width) or (n), of records (n, words)."""
        return (records if records.dtype == self.dtype else records.view(self.dtype))[:, self.place]


class Record(NamedTuple):
    """What n records hold."""

    values: Tensor  # (n, k)
    classes: Tensor | None  # (n, k) int64; None: the values are those of all classes
    label: Tensor  # (n)
    epoch: Tensor  # (n), counted from 1; 0: the record is empty


class Records:
    """``count`` records, and a spare one behind them that takes what is not to be kept.

    Args:
        count: records.
        num_classes: classes of the model.
        k: values of a record: those of all classes, or of the top k.
        dtype: of the values, any floating type.
        path: a scratch file to map instead of memory on the device.
        device: where they lie.
    """

    def __init__(
        self, count: int, num_classes: int, k: int, dtype: torch.dtype, path: str | Path | None, device: torch.device
    ) -> None:
        self.count, self.k, self.is_mapped = count, k, path is not None
        fields = {"values": (dtype, k)}
        if k < num_classes:
            # Two bytes hold 65,536 classes: read back without their sign.
            classes = torch.uint8 if num_classes <= 256 else torch.int16 if num_classes <= 65536 else torch.int32
            fields["classes"] = (classes, k)
        fields |= {"label": (torch.int16 if num_classes <= 2**15 else torch.int32, 1), "epoch": (torch.int16, 1)}
        end, placed = 0, {}
        for name, (kind, width) in sorted(fields.items(), key=lambda item: -item[1][0].itemsize):
            start = end // kind.itemsize  # larger types come first, so the end is aligned
            placed[name] = Field(kind, slice(start, start + width) if name in ("values", "classes") else start)
            end += width * kind.itemsize
        self.fields = placed
        self.values, self.label, self.epoch = placed["values"], placed["label"], placed["epoch"]
        self.classes = placed.get("classes")
        word = _WORDS[max(kind.itemsize for kind, _ in fields.values())]
        words = -(-end // word.itemsize)
        self._whole = np.dtype(f"V{words * word.itemsize}")
        # New ones are put together in words where all fields have their size, else in bytes.
        self._unit = word if len({kind.itemsize for kind, _ in fields.values()}) == 1 else torch.uint8
        self._padding = words * word.itemsize - end
        if path is not None and device.type != "cpu":
            raise PskdError(f"path: a mapped file lives on the cpu, not on device {device}; give one of the two")
        self.travelling: list[tuple[torch.Event, Tensor, Tensor | None, Tensor]] = []
        if path is None:
            self.table = torch.zeros(count + 1, words, dtype=word, device=device)
        else:
            shape = ", ".join(f"{name} {width} x {kind}" for name, (kind, width) in fields.items())
            self.table = map_file(Path(path), (count + 1, words), word, f"{count} records of {shape}")
        self._set_scratch()

    def _set_scratch(self) -> None:
        """What a write needs: the spare row, and which place of a batch is the last to write into a row."""
        device = self.table.device
        self._spare = torch.tensor(self.count, device=device)
        self._newest = torch.zeros(self.count + 1, dtype=torch.int64, device=device)
        self._places = torch.arange(min(self.count + 1, _LARGEST_BATCH), device=device)

    def read(self, rows: Tensor, like: Tensor) -> Record:
        """The records in the rows ``rows`` (n), their values of the type and device of another tensor."""
        records = self._gather(rows, like.device)
        values = self.values.of(records)
        if like.device.type == "cpu" or values.itemsize == 1:  # elsewhere half precision is widened on the way
            values = values.to(like.dtype)
        classes = None
        if self.classes is not None:
            classes = self.classes.of(records).long()
            classes = classes & 0xFFFF if self.classes.dtype == torch.int16 else classes
        return Record(values, classes, self.label.of(records), self.epoch.of(records))

    def _gather(self, rows: Tensor, device: torch.device) -> Tensor:
        """The records (n, words) on a device; many bytes go to CUDA from pinned memory, since others make it wait."""
        if device.type == "cuda" and not self.table.is_cuda and len(rows) * self._whole.itemsize > _SMALL:
            pinned = torch.empty(len(rows), self.table.shape[1], dtype=self.table.dtype, pin_memory=True)
            return torch.index_select(self.table, 0, rows, out=pinned).to(device, non_blocking=True)
        records = self.table.index_select(0, rows)
        return records if records.device == device else to_device(records, device)

    def pack_prediction(self, log_p: Tensor, p: Tensor | None, label: Tensor, epoch: Tensor) -> Tensor:
        """Records (n, words) of log-probabilities (n, K); ``p`` are the probabilities, where they are at hand."""
        if self.classes is not None:
            classes = top_classes(log_p, self.k)
            return self.pack(log_p.gather(1, classes).exp_().to(self.values.dtype), classes, label, epoch)
        # In proportion to the softmax, the largest 1: so no type is too small for a record.
        values = (log_p - log_p.amax(1, keepdim=True)).exp_() if p is None else p / p.amax(1, keepdim=True)
        values = values.to(self.values.dtype)  # here, so that nothing wider is kept
        return self.pack(values, None, label, epoch)

    def pack(self, values: Tensor, classes: Tensor | None, label: Tensor, epoch: Tensor) -> Tensor:
        """Records (n, words) of values (n, k), classes (n, k), labels and epochs, both (n) or (1) for all."""
        given = {"values": values, "label": label[:, None], "epoch": epoch[:, None]}
        if classes is not None:
            given["classes"] = classes
        parts = []
        for name, field in self.fields.items():
            part = given[name].to(field.dtype)
            part = part if part.dtype == self._unit else part.view(self._unit)
            parts.append(part if part.shape[0] == values.shape[0] else part.expand(values.shape[0], -1))
        if self._padding:
            parts.append(parts[0].new_zeros(1).expand(values.shape[0], self._padding))
        records = torch.cat(parts, 1)
        return records if records.dtype == self.table.dtype else records.view(self.table.dtype)

    def write(self, rows: Tensor, keep: Tensor | None, records: Tensor) -> None:
        """Write records (n, words) into the rows ``rows`` (n), where ``keep`` (n) is true or None.

        Of a row that is written twice, the last record is kept. From another device the records travel while that one
        goes on, and are written by ``settle``.
        """
        if records.device == rows.device:
            self._write(rows, keep, records)
            return
        event = torch.Event(records.device)
        records = records.to(rows.device, non_blocking=True)
        keep = None if keep is None else keep.to(rows.device, non_blocking=True)
        event.record()
        self.travelling.append((event, rows, keep, records))

    def settle(self) -> None:
        """Write the records that were on their way."""
        while self.travelling:
            event, rows, keep, records = self.travelling.pop(0)
            event.synchronize()
            self._write(rows, keep, records)

    def _write(self, rows: Tensor, keep: Tensor | None, records: Tensor) -> None:
        if keep is not None:
            rows = torch.where(keep, rows, self._spare)
        if at_hand(rows):
            # numpy writes one after the other, and a whole record at a time.
            self.table.numpy().view(self._whole)[rows.numpy(), 0] = records.numpy().view(self._whole)[:, 0]
            return
        # Elsewhere two writes of one row come in no order. So all of them carry the last one's record.
        places = self._places[: len(rows)] if len(rows) <= len(self._places) else torch.arange(len(rows)).to(rows)
        self._newest.scatter_reduce_(0, rows, places, "amax", include_self=False)
        last = self._newest.index_select(0, rows)
        self.table.index_copy_(0, rows, records.index_select(0, last))

    def put(self, rows: Tensor | slice, records: Tensor) -> None:
        """Write records of a state; what was on its way belonged to another time."""
        self.travelling = []
        self.table[rows if isinstance(rows, slice) else rows.to(self.table.device)] = records.to(self.table.device)

    def refresh(self, rows: Tensor, epoch: Tensor) -> None:
        """Let records that are there in the rows ``rows`` (n) be of this epoch."""
        epochs = self.epoch.of(self.table)
        epochs.index_copy_(0, rows, torch.where(epochs.index_select(0, rows) > 0, epoch, 0))

    def clear(self) -> None:
        self.travelling = []
        self.table.zero_()

    def to(self, device: torch.device) -> None:
        """Move them; those in a mapped file stay where they are."""
        self.settle()
        if self.is_mapped and device.type != "cpu":
            raise PskdError(f"path: a mapped file lives on the cpu, not on device {device}; give one of the two")
        self.table = self.table.to(device)
        self._set_scratch()

    def checked(self, records: Tensor, count: int) -> Tensor:
        """``count`` records that were read back, or an error that says that they are damaged."""
        there, here = (records.shape, records.dtype), ((count, self.table.shape[1]), self.table.dtype)
        if there != here:
            raise PskdError(f"records: the stored bank has {there}, here {here} are needed; it is damaged")
        return records

    def of_columns(self, columns: dict[str, Tensor], count: int) -> Tensor:
        """``count`` records of what version 0.2.0 and earlier kept in columns; label 0 says "no record"."""
        wide = {"values": self.values, **({"classes": self.classes} if self.classes else {})}
        sizes = {name: field.dtype.itemsize for name, field in wide.items()}
        wanted = {name: (count, self.k, size) for name, size in sizes.items()} | {
            "labels": (count, 1),
            "epochs": (count, 1),
        }
        found = {name: (*part.shape, *([part.itemsize] if name in sizes else [])) for name, part in columns.items()}
        if {"epochs": (count, 1)} | found != wanted:
            raise PskdError(f"rows: the stored bank has {found}, here {wanted} are needed; it is damaged")
        label = columns["labels"][:, 0].long()
        epoch = torch.full_like(label, _ANY_EPOCH - 1)
        if "epochs" in columns:  # 0.1 did not know of when
            then = columns["epochs"][:, 0].long()
            epoch = torch.where(then < 0, epoch, then)
        filled = torch.where(label > 0, label - 1, UNLABELLED)
        stamp = torch.where(label != 0, epoch + 1, 0)
        return self.pack(columns["values"].view(self.values.dtype), columns.get("classes"), filled, stamp)

    def __getstate__(self) -> dict[str, Any]:
        if self.is_mapped:
            # A copy would be no longer the bank that other processes see.
            raise PskdError("a bank in a mapped file cannot be copied or pickled; load its state_dict() into another")
        return self.__dict__
