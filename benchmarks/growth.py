"""How time and memory of a training's parts grow with samples N, classes K and runs: the table of docs/scaling.md.

    python benchmarks/growth.py [--parts step,checkpoint,...] [--largest-n 10000000]

Time is the processor's, user and system, the best of a few; memory the most that was resident beyond what was there
before. The slope is that of the last tenfold: 0 is constant, 1 is proportional, 2 is quadratic. A part passes if it
grows no faster, up to 0.15, than its formula says or, in time, than its yardstick: the bare operation of torch that it
cannot do without, on as many numbers or bytes, measured beside it. Sorting takes N log N, and whatever leaves the
processor's caches costs more for each number; the yardstick has both.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import hashlib
import math
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

import pskd
from pskd.metrics import functional
from pskd.plan import epoch_plan
from pskd.workbench.analysis.history import HELD, History
from pskd.workbench.report.page import report
from pskd.workbench.runs.checkpoint import Checkpoints
from pskd.workbench.runs.group import Group
from pskd.workbench.tasks.base import Shown
from pskd.workbench.tasks.classification.predictor import class_details
from report import made_up

BATCH, SLACK = 128, 0.15
SAMPLES, CLASSES, RUNS = (10**4, 10**5, 10**6, 10**7), (10, 100, 1000, 10**4, 10**5), (10, 100, 1000)


class Cost(NamedTuple):
    seconds: float
    megabytes: float


def cost(work: Callable[[], object], repeats: int = 3) -> Cost:
    """The best time of a few, and the most memory that the first one held."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # or what is free already would be used first, and not be counted
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = _kilobytes("VmRSS")
    seconds = []
    for number in range(repeats):
        begun = time.process_time()
        work()
        seconds.append(time.process_time() - begun)
        if not number:
            peak = _kilobytes("VmHWM") - before
        if sum(seconds) > 5:
            break
    return Cost(min(seconds), max(0.0, peak / 1e3))


def _kilobytes(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1])


def bank_of(samples: int, classes: int) -> pskd.PredictionBank:
    """As a run has it: dense up to 1,000 classes would be larger, here always top-k; every page was touched."""
    bank = pskd.PredictionBank(samples, classes, form="topk", k=min(32, classes))
    bank._storage.clear()
    return bank


def step(samples: int, classes: int) -> Cost:
    """The loss of PS-KD and its gradient for 128 samples, with the bank read and written."""
    distill = pskd.PSKD(2, 0.8, memory=bank_of(samples, classes))
    logits = torch.randn(BATCH, classes, requires_grad=True)
    batches = torch.randint(samples, (50, BATCH))

    def some(indices: Iterable[Tensor]) -> None:
        for index in indices:
            distill(logits, index % classes, index=index).backward()

    distill.start_epoch(0)
    some(batches)
    distill.start_epoch(1)
    rest = iter(batches.split(5))
    found = cost(lambda: some(next(rest)), repeats=9)
    return Cost(found.seconds / 5, distill.memory.nbytes / 1e6)  # type: ignore[union-attr]


def checkpoint(samples: int, classes: int) -> Cost:
    """The bank, written with checksums."""
    bank = bank_of(samples, classes)
    with tempfile.TemporaryDirectory() as folder:
        saved = Checkpoints(Path(folder, "checkpoints"), 1)
        return cost(lambda: saved.save(1, {"method-0": bank.state_dict()}))


def evaluation(samples: int, classes: int) -> Cost:
    """All metrics and details from log-probabilities (N, K), which are there."""
    log_probs, labels = torch.randn(samples, classes).log_softmax(1), torch.randint(classes, (samples,))
    names = [str(number) for number in range(classes)]

    def work() -> None:
        scores = functional.score_samples(log_probs, labels, from_logits=True)
        functional.summarize(scores)
        class_details(scores, log_probs.argmax(1), labels, names)

    return cost(work)


def history(samples: int, _: int) -> Cost:
    """The end of an epoch for `train.history`: written and begun anew."""
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder, "scratch") if samples > HELD else None
        recorder = History(Path(folder, "history.bin"), samples, torch.device("cpu"), scratch=scratch)
        recorder.cut(0)
        recorder.batch(Shown(torch.arange(BATCH), torch.randn(BATCH, 10), torch.zeros(BATCH, dtype=torch.long), None))
        return cost(lambda: recorder.end_epoch(Group()))


def plan(samples: int, _: int) -> Cost:
    """The order of an epoch."""
    return cost(lambda: epoch_plan(samples, BATCH, 1, 0, 1))


def page(runs: int) -> Cost:
    """A report over so many runs of two models and five methods, 200 test images and 20 epochs each."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        study = made_up(folder, models=2, seeds=runs // 10, epochs=20, test=200, train=200, classes=10)
        return cost(lambda: report([study.folder], folder / "report.html"), repeats=1)


def plain_loss(_: int, classes: int) -> Cost:
    """Plain cross-entropy of 128 samples and its gradient."""
    logits, labels = torch.randn(BATCH, classes, requires_grad=True), torch.arange(BATCH) % classes
    return cost(lambda: F.cross_entropy(logits, labels).backward(), repeats=9)


def written(samples: int, classes: int) -> Cost:
    """As many bytes as the bank has, with a checksum, in a file on the disk."""
    content = torch.zeros(bank_of(samples, classes).nbytes, dtype=torch.uint8).numpy()

    def work() -> None:
        with tempfile.TemporaryFile() as file:
            hashlib.sha256(content)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())

    return cost(work)


def softmax_and_sort(samples: int, classes: int) -> Cost:
    """The softmax (N, K) and the order of N numbers."""
    logits = torch.randn(samples, classes)
    return cost(lambda: logits.softmax(1).amax(1).view(torch.int32).sort())


def appended(samples: int, _: int) -> Cost:
    """Seven bytes a sample, of many in a mapped file, written behind a file and made zero."""
    with tempfile.TemporaryDirectory() as folder, Path(folder, "file").open("wb") as file:
        scratch = torch.zeros(7 * samples, dtype=torch.uint8)
        if samples > HELD:
            scratch = torch.from_file(f"{folder}/scratch", True, 7 * samples, dtype=torch.uint8).zero_()

        def work() -> None:
            file.write(scratch.numpy().data)
            scratch.zero_()

        return cost(work)


def shuffled(samples: int, _: int) -> Cost:
    """Numbers in a random order."""
    return cost(lambda: torch.randperm(samples))


# What, its yardstick, over what, the other one's number, and the most that time's and memory's formulas have as powers.
Measure = Callable[[int, int], Cost]
SIZES: dict[str, tuple[Measure, Measure, dict[str, tuple[int, int, int]]]] = {
    "step": (step, plain_loss, {"N": (100, 0, 1), "K": (10**4, 1, 0)}),
    "checkpoint": (checkpoint, written, {"N": (100, 1, 0), "K": (10**4, 0, 0)}),
    "evaluation": (evaluation, softmax_and_sort, {"N": (10, 1, 1), "K": (1000, 1, 1)}),
    "history": (history, appended, {"N": (0, 1, 1)}),  # the pages of its mapped file are resident, too
    "plan": (plan, shuffled, {"N": (0, 1, 1)}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join([*SIZES, "report"]))
    parser.add_argument("--largest-n", type=int, default=SAMPLES[-1])
    given = parser.parse_args()
    parts, samples = given.parts.split(","), [number for number in SAMPLES if number <= given.largest_n]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    print(
        "| | over | time | slope | formula | yardstick | MB | slope | formula |\n|---|---|---|---|---|---|---|---|---|"
    )
    within = True
    for part, (measure, bare, axes) in SIZES.items():
        for axis, (other, *powers) in axes.items() if part in parts else ():
            numbers = samples if axis == "N" else list(CLASSES)
            places = [(number, other) if axis == "N" else (other, number) for number in numbers]
            made = [measure(*place) for place in places]
            yardstick = slope([bare(*place).seconds for place in places[-2:]], 1e-6)
            within &= shown(part, axis, numbers, made, powers, yardstick)
    if "report" in parts:
        within &= shown("report", "runs", RUNS, [page(runs) for runs in RUNS], (1, 1))
    print(f"nothing grows faster than its formula: {'yes' if within else 'no'}")


def slope(values: Sequence[float], least: float) -> float:
    """The power of the last tenfold; values below ``least`` are noise."""
    return math.log10(max(values[-1], least) / max(values[-2], least))


def shown(
    part: str, axis: str, numbers: Iterable[int], made: list[Cost], powers: Iterable[int], yardstick: float = 0.0
) -> bool:
    """Print a row; says whether it is within its limits."""
    time_power, memory_power = powers
    over = ", ".join(f"{number:,}" for number in numbers)
    grown = slope([found.seconds for found in made], 1e-6)
    held = slope([found.megabytes for found in made], 10)  # fewer are the allocator's
    milliseconds = ", ".join(f"{1e3 * found.seconds:,.3g}" for found in made)
    megabytes = ", ".join(f"{found.megabytes:,.3g}" for found in made)
    beside = f"{yardstick:.2f}" if yardstick else ""
    cells = [part, f"{axis} = {over}", f"{milliseconds} ms", f"{grown:.2f}", f"{time_power}", beside]
    print("| " + " | ".join([*cells, megabytes, f"{held:.2f}", f"{memory_power}"]) + " |", flush=True)
    return grown <= max(time_power, yardstick) + SLACK and held <= memory_power + SLACK


if __name__ == "__main__":
    main()
