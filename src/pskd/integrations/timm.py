"""timm: a training task whose loss is a method, and a data set whose targets carry the index.

dataset_train = IndexedTargets(dataset_train)
task = PSKDTask(model, pskd.PSKD(epochs=100, memory=...), dataset_train, device=device)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from pskd.errors import PskdError
from pskd.indexed import Indexed
from pskd.integrations import missing
from pskd.memory.base import shards_of
from pskd.methods import Method

try:
    from timm.task import ClassificationTask
except ModuleNotFoundError as error:
    raise missing("timm", "timm", error) from error

_BITS = 24  # of a target that hold the label; the index is above them


class IndexedTargets(Indexed):
    """A map-style data set of (image, label) whose targets are whole numbers that hold label and index both.

    So they pass through timm's collate functions, its prefetcher and workers as labels do; ``PSKDTask`` takes them
    apart. Where ``ImageDataset`` replaces an image that cannot be read by the next one, the index is that of the next.
    ``set_epoch``, which timm's train script calls, begins the method's epoch too.
    """

    def __init__(self, dataset: Any) -> None:
        super().__init__(dataset)
        self._begin: list[Callable[[int], None]] = []
        self._read: _Reader | None = None
        if hasattr(dataset, "reader"):
            self._read = dataset.reader = _Reader(dataset.reader)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        image, label = self.dataset[index]
        label, index = int(label), int(index) if self._read is None else self._read.last
        if not 0 <= label < 2**_BITS:
            raise PskdError(f"target of sample {index} is {label}; allowed are classes 0..{2**_BITS - 1}")
        return image, (index << _BITS) + label

    def set_epoch(self, epoch: int) -> None:
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)
        for begin in self._begin:
            begin(epoch)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_begin": []}  # a worker gets no bank


class PSKDTask(ClassificationTask):
    """``ClassificationTask`` whose loss is ``method``; its state is in timm's checkpoints, as their ``task_state``.

    Args:
        model: the model in training.
        method: the loss.
        data: the training set; None: ``method.start_epoch(epoch)`` is called by your loop, and targets are labels.
        settings: ``device``, ``dtype`` and ``verbose`` of timm's task.

    Several processes: give the bank ``path=FILE``, which they share, on one host.
    """

    method: Method

    def __init__(self, model: nn.Module, method: Method, data: IndexedTargets | None = None, **settings: Any) -> None:
        unmade = sorted(method.needs - {"index", "inputs"})
        if unmade:
            raise PskdError(
                f"method: {type(method).__name__} needs {', '.join(unmade)}, which a timm task does not make"
            )
        if shards_of(method.memory) > 1:
            raise PskdError(
                "memory: timm saves in one process only, so a bank cannot be spread over hosts; take"
                " pskd.Snapshot there"
            )
        if data is not None and not isinstance(data, IndexedTargets):
            raise PskdError(f"data: IndexedTargets(dataset_train) is wanted, not a {type(data).__name__}")
        if data is None and "index" in method.needs:
            raise PskdError("data: a bank needs the index of each sample: give IndexedTargets(dataset_train)")
        super().__init__(model, method, **settings)
        self.method = method
        self._has_index = data is not None
        if data is not None:
            data._begin.append(self._start_epoch)

    def _start_epoch(self, epoch: int) -> None:
        # Process 0 comes here when it has saved; until then no other may write a record of the next epoch.
        if dist.is_available() and dist.is_initialized():
            dist.barrier()
        self.method.start_epoch(epoch)

    def forward(self, input: Tensor, target: Tensor) -> dict[str, Tensor]:
        """``loss`` and ``output`` (logits) of images (B, ...) and the targets (B) of ``IndexedTargets``."""
        index = None
        if self._has_index:
            if target.is_floating_point() or target.ndim != 1:
                raise PskdError(
                    "target: something has changed the targets of IndexedTargets; leave out timm's Mixup and"
                    " CutMix, which mix them as labels"
                )
            target, index = target & (2**_BITS - 1), target >> _BITS
        output = self.trainable_module(input)
        return {"loss": self.method(output, target, index=index, inputs=input), "output": output}

    def get_task_state(self, module: nn.Module | None = None, ema: bool = False) -> dict[str, Any]:
        return {} if ema else self.method.state_dict()

    def load_task_state(
        self, state: dict[str, Any] | None, strict: bool = True, module: nn.Module | None = None, ema: bool = False
    ) -> None:
        if state and not ema:
            self.method.load_state_dict(state)


class _Reader:
    """A reader of timm that knows which sample it was asked for last: where one cannot be read, that is the next."""

    def __init__(self, reader: Any) -> None:
        self.reader, self.last = reader, -1

    def __getitem__(self, index: int) -> Any:
        self.last = int(index)
        return self.reader[index]

    def __len__(self) -> int:
        return len(self.reader)

    def __getattr__(self, name: str) -> Any:
        if name == "reader":  # a copy is asked before it has one
            raise AttributeError(name)
        return getattr(self.reader, name)
