"""One call of a method in figures that no clock is needed for: calls, kernels, waits, memory, compilations; then time.

    python benchmarks/core.py

Kernels, waits and memory are counted on the simulated accelerator of tests/accelerator.py. Times
are ratios over F.cross_entropy of the same run, the smallest of many rounds.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import pskd

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from accelerator import LOG, NAME, OnDevice, simulated  # before the first backward pass

TOP_K = {"form": "topk", "k": 32}
Step = Callable[[], Tensor]


def make_step(batch: int, classes: int, device: str = "cpu", **bank: Any) -> tuple[Step, Step]:
    """A call of PS-KD in its second epoch, and of cross-entropy."""
    logits = torch.randn(batch, classes, device=device).requires_grad_()
    labels, index = torch.randint(classes, (batch,), device=device), torch.arange(batch, device=device)
    method = pskd.PSKD(4, memory=pskd.PredictionBank(batch, classes, device=device, **bank))
    method.start_epoch(0)
    method(logits, labels, index=index)
    method.start_epoch(1)
    return lambda: method(logits, labels, index=index), lambda: F.cross_entropy(logits, labels)


def count_calls() -> None:
    root, step = str(Path(pskd.__file__).parent), make_step(16, 10)[0]
    files: list[str] = []

    def look(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(root):
            files.append(frame.f_code.co_filename)

    sys.setprofile(look)
    try:
        step().backward()
    finally:
        sys.setprofile(None)
    changes = 1 + sum(one != other for one, other in pairwise(files))
    print(f"one call of PSKD with a bank: {len(files)} calls, {len(set(files))} files, {changes} changes of file")


def count_kernels() -> None:
    for name, bank in (("dense", {}), ("top-k", {"form": "topk", "k": 16})):
        with simulated():
            ours, plain = make_step(16, 100, f"{NAME}:0", **bank)
            counts = []
            for step in (ours, plain):
                LOG.new_step()
                step().backward()
                counts.append((sum(LOG.kernels.values()), len(LOG.waits)))
        (kernels, waits), (least, _) = counts
        print(f"{name}: {kernels} kernels and {waits} waits; F.cross_entropy {least}")


def _storage(tensor: Tensor) -> torch.UntypedStorage:
    return getattr(tensor, "held", tensor).untyped_storage()


class Memory(TorchDispatchMode):
    """Bytes of all tensors that live, and their largest sum; ``known`` were there before."""

    def __init__(self, known: list[Tensor]) -> None:
        super().__init__()
        self.live = self.peak = 0
        self.seen = {_storage(tensor)._cdata for tensor in known}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, OnDevice) and (key := _storage(tensor)._cdata) not in self.seen:
                size = _storage(tensor).nbytes()
                self.seen.add(key)
                self.live += size
                self.peak = max(self.peak, self.live)
                weakref.finalize(_storage(tensor), self._forget, key, size)
        return out

    def _forget(self, key: int, size: int) -> None:
        self.seen.discard(key)
        self.live -= size


def measure_memory(batch: int = 256, classes: int = 4000) -> None:
    unit = 4 * batch * classes
    print(f"peak memory of loss and gradient, logits included, in {batch} x {classes} float32:")
    with simulated():
        bank = pskd.PredictionBank(batch, classes, device=f"{NAME}:0")
        method = pskd.PSKD(4, memory=bank)
        labels, index = (torch.zeros(batch, dtype=torch.int64, device=f"{NAME}:0") for _ in range(2))
        index += torch.arange(batch, device=f"{NAME}:0")
        for name, step in (
            ("PS-KD, dense bank on the device", lambda logits: method(logits, labels, index=index)),
            ("F.cross_entropy", lambda logits: F.cross_entropy(logits, labels)),
        ):
            peak = 0.0
            for epoch in range(2):  # in the first there is no past
                if not method.clock.begun or epoch > method.epoch:
                    method.start_epoch(epoch)
                logits = torch.zeros(batch, classes, device=f"{NAME}:0").requires_grad_()
                with Memory([logits, bank._records.table]) as memory:
                    step(logits).backward()
                peak = 1 + memory.peak / unit
            print(f"  {name}: {peak:.2f}")


def _step(model: nn.Module, method: pskd.Method, x: Tensor, y: Tensor, index: Tensor) -> Tensor:
    return method(model(x), y, index=index)


def count_compilations(epochs: int = 14) -> None:
    for name, bank in (("dense", {}), ("top-k", {"form": "topk", "k": 4}), ("momentum", {"momentum": 0.5})):
        torch._dynamo.reset()
        counter, model = CompileCounter(), nn.Linear(6, 10)
        method = pskd.PSKD(epochs, memory=pskd.PredictionBank(64, 10, **bank))
        step = torch.compile(partial(_step, model, method), fullgraph=True, backend=counter)
        for epoch in range(epochs):
            method.start_epoch(epoch)
            for index in torch.randperm(64).split(16):
                step(torch.randn(16, 6), index % 10, index).backward()
        print(f"{name}: {counter.frame_count} compilations in {epochs} epochs")


def measure_time() -> None:
    torch.set_num_threads(1)
    for batch, classes, bank in ((128, 10, {}), (128, 100, {}), (128, 1000, {}), (256, 1000, TOP_K), (4096, 100, {})):
        steps = make_step(batch, classes, **bank)
        best = [float("inf")] * 2
        for _ in range(40):
            for place, step in enumerate(steps):
                begun = time.perf_counter()
                for _ in range(5):
                    step().backward()
                best[place] = min(best[place], (time.perf_counter() - begun) / 5)
        ours, plain = (1e6 * seconds for seconds in best)
        print(f"{batch} x {classes}{', k=32' if bank else ''}: {ours:.0f} us, {ours / plain:.1f} times F.cross_entropy")


if __name__ == "__main__":
    for measure in (count_calls, count_kernels, measure_memory, count_compilations, measure_time):
        measure()
