"""Past predictions at ImageNet's size, 1,281,167 x 1000: the top-k bank against a dense float32 store.

The dense store is used as the method's released code does it: a one-hot target from an identity matrix, mixed with
the dense rows, and the dense softmax written back. Both are built for real (the dense one takes 5.1 GB). Prints bytes,
and times of 256 random rows as ratios measured side by side: reading and writing alone, and with softmax and the
selection of the top k; then the whole of PS-KD in per cent of a ResNet-50 step (batch 16, as large as is bearable on a
CPU, also of PS-KD), and the memory of two processes that share one mapped bank.
"""

from __future__ import annotations

import os
import re
import statistics
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from processes import exit_code, in_child
from side_by_side import alternate, median
from torchvision.models import resnet50

import pskd

SAMPLES, CLASSES, BATCH, K, ALPHA = 1_281_167, 1000, 256, 32, 0.15
ROUNDS, REPEATS = 30, 10
SMALL_BATCH = 16


class DenseStore:
    """N x K in float32, and an identity matrix."""

    def __init__(self) -> None:
        self.rows = torch.full((SAMPLES, CLASSES), 1 / CLASSES)
        self.identity = torch.eye(CLASSES)

    def read(self, index: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return (1 - ALPHA) * self.identity[labels] + ALPHA * self.rows[index]

    def write(self, index: torch.Tensor, probabilities: torch.Tensor) -> None:
        self.rows[index] = probabilities


def filled(path: Path | None) -> pskd.PredictionBank:
    """A bank in which every sample has a row."""
    bank = pskd.PredictionBank(SAMPLES, CLASSES, form="topk", k=K, path=path)
    logits = torch.randn(4096, CLASSES)
    for index in torch.arange(SAMPLES).split(4096):
        bank.record(index, logits[: len(index)])
    return bank


def proportional_memory(path: Path) -> int:
    """This process's share of the mapped file's resident pages, in bytes."""
    maps = Path("/proc/self/smaps").read_text()
    parts = re.findall(rf"{re.escape(str(path))}\n(?:.*\n)*?Pss: +(\d+) kB", maps)
    return sum(int(kilobytes) for kilobytes in parts) * 1024


def shared_memory(bank: pskd.PredictionBank, path: Path) -> tuple[int, int]:
    """The sum over two processes that have read the whole bank, and the file's size."""
    everything = torch.arange(SAMPLES)
    reading, writing = os.pipe()
    ready, go_on = os.pipe()

    def other() -> None:
        again = pskd.PredictionBank(SAMPLES, CLASSES, form="topk", k=K, path=path)
        for index in everything.split(65_536):
            again.recall(index)
        os.write(writing, b"r")
        os.read(ready, 1)
        os.write(writing, str(proportional_memory(path)).encode())

    child = in_child(other)
    for index in everything.split(65_536):
        bank.recall(index)
    os.read(reading, 1)
    own = proportional_memory(path)
    os.write(go_on, b"g")
    assert exit_code(child) == 0
    return own + int(os.read(reading, 100)), path.stat().st_size


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dense = DenseStore()
    logits, labels = torch.randn(BATCH, CLASSES), torch.randint(CLASSES, (BATCH,))
    probabilities = logits.softmax(1)
    batches = torch.randperm(SAMPLES).split(BATCH)[:REPEATS]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bank"
        banks = {"in RAM": filled(None), "mapped": filled(path)}
        size = banks["in RAM"].nbytes
        whole = SAMPLES * CLASSES * 4
        print(f"top-k bank, k = {K}: {size / 1e6:.1f} MB (under 180), 1/{whole / size:.1f} of dense float32 (1/28)")

        def dense_rows() -> None:
            for index in batches:
                dense.read(index, labels)
                dense.write(index, probabilities)

        def dense_all() -> None:
            for index in batches:
                dense.read(index, labels)
                dense.write(index, logits.softmax(1))

        for place, bank in banks.items():
            rows = {name: part[:BATCH].clone() for name, part in bank._storage.rows(SAMPLES).items()}

            def bank_rows(bank: pskd.PredictionBank = bank, rows: dict[str, torch.Tensor] = rows) -> None:
                for index in batches:
                    bank.recall(index)
                    bank._write(index, None, rows)

            def bank_all(bank: pskd.PredictionBank = bank) -> None:
                for index in batches:
                    bank.recall(index)
                    bank.record(index, logits)

            seconds = alternate(dense_rows, bank_rows, dense_all, bank_all, rounds=ROUNDS)
            first = median([theirs / ours for theirs, ours in zip(seconds[0], seconds[1], strict=True)])
            second = median([theirs / ours for theirs, ours in zip(seconds[2], seconds[3], strict=True)])
            print(f"{place}: rows read and written {first} times as fast (at least 3)")
            print(f"{place}: with softmax and selection {second} times as fast (at least 1)")

        together, file = shared_memory(banks["mapped"], path)
        print(f"two processes, one file: {together / file:.3f} of its size resident in both together (1: counted once)")
        of_a_step(banks["in RAM"])


def of_a_step(bank: pskd.PredictionBank) -> None:
    """What PS-KD adds to a ResNet-50 step on 224 x 224 images."""
    model = resnet50().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    images = torch.randn(SMALL_BATCH, 3, 224, 224).contiguous(memory_format=torch.channels_last)
    labels, index = torch.randint(CLASSES, (SMALL_BATCH,)), torch.randint(SAMPLES, (SMALL_BATCH,))
    logits = torch.randn(SMALL_BATCH, CLASSES, requires_grad=True)
    distill = pskd.PSKD(epochs=90, alpha=0.3, memory=bank)
    distill.load_state_dict({"epoch": 1, "memory": bank.state_dict()})
    distill.start_epoch(1)
    bank.record(index, logits, labels=labels)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    def plain() -> None:
        for _ in range(REPEATS):
            F.cross_entropy(logits, labels).backward()

    def distilled() -> None:
        for _ in range(REPEATS):
            distill(logits, labels, index=index).backward()

    (seconds,) = alternate(step, rounds=3, warmup=1)
    losses = alternate(plain, distilled, rounds=ROUNDS)
    typical = statistics.median(seconds)
    added = [(ours - theirs) / REPEATS for theirs, ours in zip(*losses, strict=True)]
    share = median([100 * each / typical for each in added])
    print(f"PS-KD in per cent of a ResNet-50 step of {typical:.2f} s (at most 1): {share}")


if __name__ == "__main__":
    main()
