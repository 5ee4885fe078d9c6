"""How time and memory of a training's parts grow with samples N, classes K and runs: the table of docs/scaling.md.

    python benchmarks/growth.py [--parts step,checkpoint,...] [--largest-n 10000000]

Time is the processor's, user and system, the best of a few; memory the most that was resident beyond what was there
before. The slope is that of the last tenfold: 0 is constant, 1 is proportional, 2 is quadratic. A part passes if it
grows no faster than its formula says, up to 0.35: wide enough for sorting and for arrays that leave the caches (the
limit was set after first figures of up to 1.28), narrow enough for a square.
"""

from __future__ import annotations

import argparse
import gc
import math
import re
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

import pskd
from pskd.analysis.history import HELD, History
from pskd.metrics import functional
from pskd.plan import epoch_plan
from pskd.report.page import report
from pskd.runs.checkpoint import Checkpoints
from pskd.runs.group import Group
from pskd.tasks.base import Shown
from pskd.tasks.classification.details import detailed
from report import made_up

BATCH, SLACK = 128, 0.35
SAMPLES, CLASSES, RUNS = (10**4, 10**5, 10**6, 10**7), (10, 100, 1000, 10**4, 10**5), (10, 100, 1000)


class Cost(NamedTuple):
    seconds: float
    megabytes: float


def cost(work: Callable[[], object], repeats: int = 3) -> Cost:
    """The best time of a few, and the most memory that the first one held."""
    gc.collect()
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
        detailed(scores, log_probs.argmax(1), labels, names)

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


# What, over what, the other one's number, and the powers that the formulas of time and memory have at most.
SIZES: dict[str, tuple[Callable[[int, int], Cost], dict[str, tuple[int, int, int]]]] = {
    "step": (step, {"N": (100, 0, 1), "K": (10**4, 1, 0)}),
    "checkpoint": (checkpoint, {"N": (100, 1, 0), "K": (10**4, 0, 0)}),
    "evaluation": (evaluation, {"N": (10, 1, 1), "K": (1000, 1, 1)}),
    "history": (history, {"N": (0, 1, 1)}),  # the pages of its mapped file are resident, too
    "plan": (plan, {"N": (0, 1, 1)}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join([*SIZES, "report"]))
    parser.add_argument("--largest-n", type=int, default=SAMPLES[-1])
    given = parser.parse_args()
    parts, samples = given.parts.split(","), [number for number in SAMPLES if number <= given.largest_n]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    print("| | over | time | slope | at most | MB | slope | at most |\n|---|---|---|---|---|---|---|---|")
    within = True
    for part, (measure, axes) in SIZES.items():
        for axis, (other, *powers) in axes.items() if part in parts else ():
            if axis == "N":
                numbers, made = samples, [measure(number, other) for number in samples]
            else:
                numbers, made = list(CLASSES), [measure(other, number) for number in CLASSES]
            within &= shown(part, axis, numbers, made, powers)
    if "report" in parts:
        within &= shown("report", "runs", RUNS, [page(runs) for runs in RUNS], (1, 1))
    print(f"nothing grows faster than its formula: {'yes' if within else 'no'}")


def shown(part: str, axis: str, numbers: Iterable[int], made: list[Cost], powers: Iterable[int]) -> bool:
    """Print a row; says whether it is within its limits."""
    columns = [[found.seconds * 1e3 for found in made], [found.megabytes for found in made]]
    over = ", ".join(f"{number:,}" for number in numbers)
    cells, within = [f"{part}", f"{axis} = {over}"], True
    for values, power, unit, least in zip(columns, powers, (" ms", ""), (1e-3, 10), strict=True):
        slope = math.log10(max(values[-1], least) / max(values[-2], least))  # fewer megabytes are the allocator's
        within &= slope <= power + SLACK
        cells += [", ".join(f"{value:,.3g}" for value in values) + unit, f"{slope:.2f}", str(power)]
    print("| " + " | ".join(cells) + " |", flush=True)
    return within


if __name__ == "__main__":
    main()
