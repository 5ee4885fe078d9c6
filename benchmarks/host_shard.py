"""One host of 256 that train on a billion samples of 100,000 classes: its shard of the bank, on this machine.

    python benchmarks/host_shard.py [FOLDER]

The shard has its real number of rows, 3,906,250 of them with k = 32, in a mapped file in FOLDER (default: the
temporary folder; it needs 0.8 GB). Batches of random rows are read and written as eight processes of 128 samples would
do it, a few thousand of an epoch's 30,518 steps of a process; one shard of a checkpoint is written with its checksum.
Prints what was measured beside the formulas of docs/scaling.md.
"""

from __future__ import annotations

import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

import pskd
from pskd.workbench.runs.checkpoint import Checkpoints

SAMPLES, CLASSES, HOSTS, PROCESSES, BATCH, K = 1_000_000_000, 100_000, 256, 8, 128, 32
STEPS = 500


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if sys.argv[1:] else None) as name:
        folder = Path(name)
        host = 17
        bank = pskd.PredictionBank(SAMPLES, CLASSES, form="topk", k=K, path=folder / "bank", host=host, hosts=HOSTS)
        rows = len(range(host, SAMPLES, HOSTS))
        formula = rows * (K * (2 + 4) + 4)
        print(f"rows of this host        {rows:,}")
        print(f"bytes                    {bank.nbytes:,}; formula rows * (k * (2 + 4) + 4) = {formula:,}")

        begun = time.perf_counter()
        order = torch.randperm(rows) * HOSTS + host
        print(f"order of an epoch        {time.perf_counter() - begun:.2f} s, {order.nbytes / 1e6:.0f} MB")

        logits = torch.randn(BATCH, CLASSES)
        reading, writing = [], []
        for index in order.split(BATCH)[:STEPS]:
            begun = time.perf_counter()
            bank.recall(index)
            reading.append(time.perf_counter() - begun)
            begun = time.perf_counter()
            bank.record(index, logits)
            writing.append(time.perf_counter() - begun)
        print(f"read {BATCH} rows            {statistics.median(reading) * 1e3:.2f} ms")
        print(f"softmax, select, write   {statistics.median(writing) * 1e3:.2f} ms")
        values = torch.zeros(BATCH, K, dtype=torch.int16)
        plain = []
        for index in order.split(BATCH)[STEPS : 2 * STEPS]:
            begun = time.perf_counter()
            bank._storage.write(index // HOSTS, {"values": values, "classes": values, "labels": values[:, :1]})
            plain.append(time.perf_counter() - begun)
        print(f"write alone              {statistics.median(plain) * 1e3:.2f} ms")

        begun = time.perf_counter()
        Checkpoints(folder / "checkpoints", 1).save(1, {"method-17": bank.state_dict()})
        seconds = time.perf_counter() - begun
        print(
            f"checkpoint of the shard  {seconds:.1f} s, {bank.nbytes / seconds / 1e6:.0f} MB/s with checksum and fsync"
        )
        print(f"at 1% of the time        one every {seconds / 0.01 / 60:.0f} minutes")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(f"peak resident memory     {peak / 1e6:.2f} GB, the mapped file's touched pages with it")


if __name__ == "__main__":
    main()
