"""Two processes over one: what the bank adds to a step, and what PS-KD sends.

    python benchmarks/scaling.py

The same ResNet-20 on CIFAR-sized images with the same global batch of 128, in one process and in two (gloo on the
loopback, DistributedDataParallel), each with plain cross-entropy and with PS-KD and a bank, step by step alternately.
What the bank adds is the time of its loss minus that of plain cross-entropy, per cent of the plain step (at most 0.5).
Bytes are those that the kernel counts on the process's connections: PS-KD must send none.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import struct
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from processes import exit_code, in_children
from side_by_side import median
from torch.nn.parallel import DistributedDataParallel

import pskd

GLOBAL_BATCH, CLASSES, SAMPLES = 128, 100, 50_000
STEPS, WARMUP, REPEATS, COUNTED = 20, 3, 20, 5
_BYTES_SENT = 200  # where the kernel's tcp_info holds them


def sent_bytes() -> int:
    """Bytes that this process has sent over TCP, as the kernel counts them (Linux)."""
    total = 0
    for handle in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(handle))) as connection:
                if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM:
                    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                    total += struct.unpack_from("Q", info, _BYTES_SENT)[0] if len(info) > _BYTES_SENT + 8 else 0
        except OSError:
            continue  # not a socket
    return total


def work(folder: Path, world: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank = 0
    if world > 1:
        dist.init_process_group("gloo")
        rank = dist.get_rank()
    batch = GLOBAL_BATCH // world
    plain_model = pskd.models.create("resnet20", num_classes=CLASSES)
    model: torch.nn.Module = DistributedDataParallel(plain_model) if world > 1 else plain_model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    labels = torch.randint(CLASSES, (SAMPLES,))
    bank = pskd.PredictionBank(SAMPLES, CLASSES, path=folder / f"bank-{world}")
    if world > 1:
        dist.barrier()
    distill = pskd.PSKD(epochs=300, memory=bank)
    distill.load_state_dict({"epoch": 1, "memory": bank.state_dict()})
    distill.start_epoch(1)
    for index in torch.arange(SAMPLES).split(1000):
        bank.record(index, torch.randn(len(index), CLASSES), labels=labels[index])
    images = torch.randn(batch, 3, 32, 32)
    orders = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(1)).split(GLOBAL_BATCH)

    def step(number: int, method: str) -> float:
        index = orders[number % len(orders)][rank::world][:batch]
        begun = time.perf_counter()
        optimizer.zero_grad()
        logits = model(images[: len(index)])
        if method == "ps_kd":
            loss = distill(logits, labels[index], index=index)
        else:
            loss = F.cross_entropy(logits, labels[index])
        loss.backward()
        optimizer.step()
        return time.perf_counter() - begun

    def losses(method: str) -> float:
        """The loss alone, forward and backward: what differs between the two kinds of step."""
        logits = torch.randn(batch, CLASSES, requires_grad=True)
        begun = time.perf_counter()
        for number in range(REPEATS):
            index = orders[number][rank::world][:batch]
            if method == "ps_kd":
                distill(logits, labels[index], index=index).backward()
            else:
                F.cross_entropy(logits, labels[index]).backward()
        return (time.perf_counter() - begun) / REPEATS

    seconds: dict[str, list[float]] = {"plain": [], "ps_kd": []}
    added = []
    for number in range(WARMUP + STEPS):
        for method in seconds if number % 2 else reversed(seconds):
            seconds[method].append(step(number, method))
        added.append(losses("ps_kd") - losses("plain"))
    sent = {}
    for method in seconds:
        before = sent_bytes()
        for number in range(COUNTED):
            step(number, method)
        if world > 1:
            dist.barrier()
        sent[method] = (sent_bytes() - before) / COUNTED
    if rank == 0:
        found = {"plain": seconds["plain"][WARMUP:], "added": added[WARMUP:], "sent": sent}
        (folder / f"result-{world}.json").write_text(json.dumps(found))
    if world > 1:
        dist.destroy_process_group()


def main() -> None:
    pskd.models.create("resnet8", num_classes=2)  # loads what the forked processes need
    results = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for world in (1, 2):
            for child in in_children(lambda world=world: work(folder, world), world):  # type: ignore[misc]
                assert exit_code(child) == 0
            results[world] = json.loads((folder / f"result-{world}.json").read_text())
    for world, found in results.items():
        typical = statistics.median(found["plain"])
        share = median([100 * each / typical for each in found["added"]])
        print(f"{world} process(es): a plain step {typical * 1e3:.0f} ms; the bank adds {share} % (at most 0.5)")
    speed = statistics.median(results[1]["plain"]) / statistics.median(results[2]["plain"])
    print(f"two processes are {speed:.2f} times as fast as one, same global batch")
    sent = results[2]["sent"]
    print(f"bytes a process sends in a step: plain {sent['plain']:,.0f}, PS-KD {sent['ps_kd']:,.0f}")
    print(f"sent by PS-KD: {sent['ps_kd'] - sent['plain']:,.0f} bytes a step (0)")


if __name__ == "__main__":
    main()
