"""A bank of past predictions: one row per training sample, no extra forward pass.

The row of a sample is the softmax of its training forward pass one epoch ago (train mode, augmented view, before the
optimizer step), as the paper's "save the past predictions" does it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pskd.checks import ValueChecks
from pskd.errors import PskdError
from pskd.memory.base import Memory
from pskd.memory.storage import Storage
from pskd.targets import Past, wide

FORMS = ("dense", "topk")
_RAW = {
    1: torch.uint8,
    2: torch.int16,
    4: torch.int32,
    8: torch.int64,
}  # rows are moved as plain integers of their size


class PredictionBank(Memory):
    """Rows of past predictions in RAM, on a device, or in a memory-mapped file that the processes of a host share.

    Args:
        num_samples: rows; ``index`` runs from 0 to num_samples - 1. Tokens are samples too.
        num_classes: classes of the model.
        form: "dense" keeps every class, "topk" the ``k`` likeliest; the rest of the mass is spread evenly when read.
            ``k >= num_classes`` is stored as dense.
        dtype: any floating type.
        path: a scratch file to map instead of RAM. It is made anew; ``state_dict`` is what survives.
        device: where rows held in memory live.
        fingerprint: identity of the data set (``Indexed(dataset).fingerprint``); a state filled for another is refused.

    Bytes per sample: ``num_classes * itemsize``, or ``k * (itemsize + 1, 2 or 4)``; plus 2 or 4 for the label.
    """

    needs = "index"

    def __init__(
        self,
        num_samples: int,
        num_classes: int,
        form: str = "dense",
        k: int = 32,
        dtype: torch.dtype = torch.float16,
        path: str | Path | None = None,
        device: str | torch.device = "cpu",
        fingerprint: str | None = None,
    ) -> None:
        if form not in FORMS:
            raise PskdError(f"form is {form!r}; allowed are {', '.join(FORMS)}")
        for name, number in (("num_samples", num_samples), ("num_classes", num_classes), ("k", k)):
            if number < 1:
                raise PskdError(f"{name} must be at least 1, got {number}")
        if not dtype.is_floating_point:
            raise PskdError(f"dtype must be a floating type, got {dtype}")
        if path is not None and torch.device(device).type != "cpu":
            raise PskdError(f"path: a mapped file lives on the cpu, not on device {device}; give one of the two")
        self.num_samples, self.num_classes, self.dtype, self.fingerprint = num_samples, num_classes, dtype, fingerprint
        self.form = "dense" if k >= num_classes else form
        self.k = num_classes if self.form == "dense" else k

        # Everything starts as zero bytes, which costs nothing until a row is written: label column 0 means "no row
        # yet", c + 1 a row of class c, num_classes + 1 a row without a class label. The last row is spare: it takes
        # what is not to be kept.
        columns = {"values": (self.k, _RAW[dtype.itemsize])}
        if self.form == "topk":
            # Two bytes hold 65,536 classes: read back without their sign.
            class_type = torch.uint8 if num_classes <= 256 else torch.int16 if num_classes <= 65536 else torch.int32
            columns["classes"] = (k, class_type)
        columns["labels"] = (1, torch.int16 if num_classes < 32766 else torch.int32)
        self._storage = Storage(num_samples + 1, columns, path=path, device=torch.device(device))
        self._epoch = 0
        self._checks = ValueChecks()
        self._arriving: tuple[torch.Event, tuple[Tensor, dict[str, Tensor]]] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self._storage.nbytes

    @property
    def device(self) -> torch.device:
        return self._storage.device

    def start_epoch(self, epoch: int) -> None:
        self._checks.settle()
        if epoch == 0 and self._epoch > 0:
            self.clear()  # a second training with the same bank has no past in its first epoch either
        self._epoch = epoch

    def check(self, key: Tensor, logits: Tensor) -> None:
        positions = (logits.shape[0], *logits.shape[2:])
        if logits.shape[1] != self.num_classes:
            raise PskdError(f"logits have {logits.shape[1]} classes, but the bank was made for {self.num_classes}")
        if key.is_floating_point() or key.dtype == torch.bool:
            raise PskdError(f"index must be integers, got {key.dtype}")
        if tuple(key.shape) != positions:
            hint = "" if logits.ndim == 2 else "; for dense predictions of images use memory=pskd.Snapshot(model)"
            raise PskdError(f"index has shape {tuple(key.shape)}, but the logits want one per label, {positions}{hint}")

    def recall(self, key: Tensor, *, labels: Tensor | None = None, take: Tensor | None = None) -> Past:
        """The rows of the samples ``key`` (B, ...) as float32 or wider, dense ones renormalised."""
        self._checks.settle()
        self._arrived()
        index = self._rows(key, take)
        column = self._storage.read("labels", index)[..., 0].long()
        known = (column > 0) & (index < self.num_samples)
        if labels is not None:
            now = labels.to(self.device).long() + 1
            self._checks.require_none(
                known & (column != now) & (column <= self.num_classes),
                lambda wrong: (
                    f"index: {wrong} samples had another label when the bank was filled; the data set was changed or"
                    " reordered: give each sample the same index as before, or start with an empty bank"
                ),
            )
        values = self._storage.read("values", index).view(self.dtype)
        values = values.to(wide(self.dtype)).movedim(-1, 1)
        if self.form == "dense":
            return Past(values / values.sum(1, keepdim=True).clamp_min(1e-30), None, known)
        classes = self._storage.read("classes", index).long()
        return Past(values, (classes & 0xFFFF if self.num_classes <= 65536 else classes).movedim(-1, 1), known)

    @torch.no_grad()
    def record(self, key: Tensor, logits: Tensor, *, labels: Tensor | None = None, take: Tensor | None = None) -> None:
        """Write the softmax of logits (B, K, ...). Of an index that stands twice in the batch, the last one is kept."""
        self._arrived()
        index = self._rows(key, take).flatten()
        column = torch.full_like(index, self.num_classes + 1) if labels is None else labels.flatten().long() + 1
        likely = torch.softmax(logits.to(wide(logits.dtype)), 1)
        likely = likely.movedim(1, -1).reshape(-1, self.num_classes)
        columns = {"labels": column[:, None]}
        if self.form == "topk":
            likely, columns["classes"] = likely.topk(self.k, 1)
        columns["values"] = likely.to(self.dtype).view(_RAW[self.dtype.itemsize])
        if logits.device.type == "cpu" or logits.device == self.device:
            self._write(index, columns)
            return
        # The rows travel to the host while the accelerator goes on, and are written when they are asked for next.
        columns = {name: part.to(self.device, non_blocking=True) for name, part in columns.items()}
        event = torch.Event(logits.device)
        event.record()
        self._arriving = event, (index, columns)

    def clear(self) -> None:
        """Forget every row."""
        self._arriving = None
        self._storage.clear()

    def state_dict(self) -> dict[str, Any]:
        """The rows and what they were made for; the tensors are views, so save them before the next step."""
        self._arrived()
        return {**self._description(), "rows": self._storage.rows(self.num_samples)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        own = self._description()
        for name, here in own.items():
            there = state.get(name)
            if there != here and not (name == "fingerprint" and None in (there, here)):
                what = "another or a reordered data set" if name in ("fingerprint", "num_samples") else "other settings"
                raise PskdError(f"{name}: the stored bank was filled for {what} ({there!r}, here {here!r})")
        self._arriving = None
        self._storage.load(state["rows"])

    def _description(self) -> dict[str, Any]:
        return {
            "num_samples": self.num_samples,
            "num_classes": self.num_classes,
            "form": self.form,
            "k": self.k,
            "dtype": str(self.dtype).removeprefix("torch."),
            "fingerprint": self.fingerprint,
        }

    def _rows(self, index: Tensor, take: Tensor | None) -> Tensor:
        """The rows to touch, on the bank's device; what is not to be read or kept goes to the spare last row."""
        index = index.to(self.device, torch.int64)
        wrong = spare = (index < 0) | (index >= self.num_samples)
        if take is not None:
            take = take.to(self.device)
            wrong, spare = wrong & take, wrong | ~take
        self._checks.require_none(
            wrong,
            lambda count: (
                f"index: {count} lie outside 0..{self.num_samples - 1} (the bank has {self.num_samples} rows)"
            ),
        )
        return torch.where(spare, self.num_samples, index)

    def _write(self, index: Tensor, columns: dict[str, Tensor]) -> None:
        # Two writes of one row in one step come in no order. So all copies of an index carry the last one's values.
        order = torch.argsort(index, stable=True)
        ranked = index[order]
        if self.device.type != "cpu" or bool((ranked[1:] == ranked[:-1]).any()):
            last = order[torch.searchsorted(ranked, index, right=True) - 1]
            columns = {name: part[last] for name, part in columns.items()}
        self._storage.write(index, columns)

    def _arrived(self) -> None:
        if self._arriving is not None:
            event, rows = self._arriving
            self._arriving = None
            event.synchronize()
            self._write(*rows)
