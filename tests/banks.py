"""A bank, written and read through the door as a method does it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pskd import PredictionBank
from pskd.checks import ValueChecks, allow_nonfinite
from pskd.door import Batch, door
from pskd.memory.records import Record, Records
from pskd.targets import Past


def stored(state: dict[str, Any]) -> Record:
    """What the records of a bank's state hold; the epoch of an empty one is 0."""
    dtype, cpu = getattr(torch, state["dtype"]), torch.device("cpu")
    bank = Records(len(state["records"]), state["num_classes"], state["k"], dtype, None, cpu)
    bank.table[: bank.count] = state["records"]
    return bank.read(torch.arange(bank.count), torch.empty((), dtype=dtype))


def batch_of(logits: Tensor, targets: Any = None, distilled: Tensor | None = None) -> Batch:
    """A batch behind the door; without targets they are class probabilities, so that no sample has a label."""
    targets = torch.full_like(logits, 1 / logits.shape[1]) if targets is None else targets
    with allow_nonfinite():
        return door(logits, targets, distilled, checks=ValueChecks())


def record(
    bank: PredictionBank, index: Any, logits: Tensor, targets: Any = None, distilled: Tensor | None = None
) -> None:
    """Record the softmax of logits (B, K, ...)."""
    bank.write(bank.key(index=index), batch_of(logits, targets, distilled))


def recall(bank: PredictionBank, index: Any, targets: Any = None, distilled: Tensor | None = None) -> Past:
    """What a batch of the samples ``index`` (B, ...) reads, in float64."""
    positions = torch.as_tensor(index).shape
    logits = torch.zeros(positions[0], bank.num_classes, *positions[1:], dtype=torch.float64)
    return bank.read(bank.key(index=index), batch_of(logits, targets, distilled))


def known(bank: PredictionBank, index: Tensor, targets: Any = None) -> list[bool]:
    """Which samples have a record that counts: to a batch, and to who looks into the bank."""
    found = recall(bank, index, targets).known
    assert found is not None
    assert torch.equal(found, bank.known(index.flatten()))
    return found.tolist()


def dense(bank: PredictionBank, index: Tensor) -> Tensor:
    """What a batch reads, (n, K), the rest of a top-k record spread evenly; who looks into the bank sees the same."""
    past = recall(bank, index)
    values = past.values / past.values.sum(1, keepdim=True).clamp_min(1)
    if past.classes is not None:
        rest = (1 - values.sum(1, keepdim=True)) / (bank.num_classes - values.shape[1])
        values = rest.repeat(1, bank.num_classes).scatter(1, past.classes, values)
    assert past.known is not None
    seen = bank.probabilities(index.flatten())
    torch.testing.assert_close(seen[past.known].double(), values[past.known], rtol=1e-5, atol=1e-6)
    return values
