"""Where past predictions come from: a bank of records, or a frozen copy of the model."""

from pskd.memory.bank import PredictionBank
from pskd.memory.base import Memory
from pskd.memory.snapshot import Snapshot

__all__ = ["Memory", "PredictionBank", "Snapshot"]
