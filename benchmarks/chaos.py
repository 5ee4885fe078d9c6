"""Kill a run again and again, damage its checkpoints, fill its disk: it must end as if nothing had happened.

    python benchmarks/chaos.py [KILLS [KIND...]]     (default 50 for each of 8 kinds; some 15 minutes)

Every kind of run is first trained undisturbed. Then it is resumed and killed with SIGKILL at random instants, every
third time while a checkpoint is written. Of several processes sometimes only one is killed. In between the newest
checkpoint is truncated, or one of its bits is flipped, or the disk is full. The finished run must have exactly the same
weights and metrics. Prints one line for each kind, and exits with 1 if one differs.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import yaml
from processes import exit_code, in_child, in_children
from safetensors.torch import load_file

from pskd.errors import PskdError
from pskd.workbench.config import Config, resolve
from pskd.workbench.recipes import read_recipe
from pskd.workbench.runs.checkpoint import Checkpoints
from pskd.workbench.study.cells import Study, StudyFile
from pskd.workbench.study.queue import Queue
from pskd.workbench.study.worker import Worker
from pskd.workbench.train.loop import train

DIGITS = ("data.per_class=20", "model.width=4", "batch_size=32")
TEXT = (
    *("data.pairs=60", "data.vocabulary=80", "model.layers=1", "model.width=16", "model.heads=2", "model.inner=16"),
    *("batch_size=256", "eval.beam=1", "eval.every=1000"),
)
SCENES = (
    *("data.train_images=8", "data.test_images=2", "data.val_images=2", "data.image_size=32", "data.max_size=48"),
    *("model.backbone=resnet8", "model.rois=8", "model.pyramid_width=8", "model.box_width=8", "batch_size=2"),
    *("data.workers=0", "eval.every=1000"),
)
KINDS = {  # recipe, processes of a host, hosts, settings
    "one process, dense bank": ("digits", 1, 1, DIGITS),
    "one process, snapshot twice an epoch": ("digits", 1, 1, (*DIGITS, "method.memory=snapshot", "method.refresh=0.5")),
    "two processes, top-k bank": ("digits", 2, 1, (*DIGITS, "method.form=topk", "method.k=4")),
    "two hosts, dense bank": ("digits", 1, 2, (*DIGITS, "train.accumulate=2")),
    "two processes, the model spread over them": ("digits", 2, 1, (*DIGITS, "train.shard=true")),
    "translation": ("translation/numbers", 1, 1, TEXT),
    "detection": ("detection/digits", 1, 1, SCENES),
}
STUDY = "a study, two workers"
LONGEST_START = 20  # seconds that a run has for its first checkpoint
LONGEST_END = 120  # seconds that the processes have to end in after one of them was killed
MOST_STEPS = 10  # that a run may take between two kills


def tiny(*overrides: str, recipe: str = "digits") -> Config:
    """ResNet-8 of width 4 on 200 digits, or a run of another recipe, with a checkpoint every second step."""
    words = [*(DIGITS if recipe == "digits" else ()), "train.save_every=2 steps", *overrides]
    return resolve(read_recipe(recipe), words, name=recipe)


def outcome(run: Path) -> tuple[list[dict[str, Any]], dict[str, torch.Tensor]]:
    """The metrics and weights of a finished run, without its times."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for record in records:
        del record["seconds"]
    return records, load_file(run / "model.safetensors")


def equal(one: Path, other: Path) -> bool:
    (records, weights), (others, other_weights) = outcome(one), outcome(other)
    return records == others and all(torch.equal(weights[name], other_weights[name]) for name in weights)


class Storm:
    """Disturb a run until it has been killed ``kills`` times, then let it finish."""

    def __init__(self, start: Callable[[], list[int]], run: Path, draw: random.Random) -> None:
        self.start, self.run, self.draw = start, run, draw
        self.seen: Counter[str] = Counter()

    def rage(self, kills: int) -> Counter[str]:
        while self.seen["kills"] < kills and not (self.run / "result.json").exists():
            self._disturb_the_disk()
            children = self.start()
            self._wait_for_the_moment(children)
            one_only = len(children) > 1 and self.draw.random() < 0.5
            for child in [self.draw.choice(children)] if one_only else children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            self.seen["kills"] += 1
            self.seen["of one process of several"] += one_only
            _all_end(children)
        codes = [exit_code(child) for child in self.start()]
        if any(codes):
            raise SystemExit(f"{self.run} cannot be continued: exit codes {codes}")
        return self.seen

    def _wait_for_the_moment(self, children: list[int]) -> None:
        """Wait for a random instant, or until a checkpoint is written; not so long that a fast machine finishes.

        Mostly wait for a new checkpoint first: a run that starts slowly would never get to its first step.
        """
        begun, patience = self._saved_step(), time.monotonic() + LONGEST_START
        if self.draw.random() < 0.8:
            while self._saved_step() <= begun and time.monotonic() < patience:
                if (self.run / "result.json").exists():
                    return
                time.sleep(0.002)
        self.seen["after it had gone on"] += self._saved_step() > begun
        deadline = time.monotonic() + self.draw.uniform(0.05, 1.0 * len(children))
        furthest = self._saved_step() + self.draw.randint(1, MOST_STEPS)
        during_write = self.draw.random() < 1 / 3
        while time.monotonic() < deadline and self._saved_step() < furthest:
            if during_write and any((self.run / "checkpoints").glob(".writing-*")):
                time.sleep(self.draw.uniform(0, 0.004))
                self.seen["in a checkpoint's writing"] += 1
                return
            time.sleep(0.0005 if during_write else 0.01)

    def _saved_step(self) -> int:
        return max(Checkpoints(self.run / "checkpoints", 2).steps(), default=0)

    def _disturb_the_disk(self) -> None:
        checkpoints = Checkpoints(self.run / "checkpoints", 2)
        newest = checkpoints.steps()[-1:] if len(checkpoints.steps()) > 1 else []
        kind = self.draw.choice(["", "", "", "truncated", "flipped byte"])
        if newest and kind:
            files = sorted((self.run / "checkpoints" / f"{newest[0]:09d}").iterdir())
            file = self.draw.choice(files)
            content = bytearray(file.read_bytes())
            at = self.draw.randrange(len(content))
            content[at] ^= 1 << self.draw.randrange(8)
            file.write_bytes(content[:at] if kind == "truncated" else content)
            self.seen[kind] += 1


def _all_end(children: list[int]) -> None:
    """When one has died, the others must end soon. Those that still wait for it are sent SIGTERM."""
    deadline = time.monotonic() + LONGEST_END
    left = list(children)
    while left:
        left = [child for child in left if os.waitpid(child, os.WNOHANG) == (0, 0)]
        if time.monotonic() > deadline - LONGEST_END + 2:
            for child in left:
                os.kill(child, signal.SIGTERM)  # as torchrun does
        if time.monotonic() > deadline:
            raise SystemExit(f"processes {left} hang after another one was killed")
        time.sleep(0.005)


def full_disk(work: Callable[[], object], limit: int = 20_000) -> Callable[[], None]:
    """``work``, but no file can grow over ``limit`` bytes: writing fails in the middle, as on a full disk."""

    def limited() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        try:
            work()
        except PskdError:
            sys.exit(2)

    return limited


def disturbed_study(base: Path, kills: int, draw: random.Random) -> tuple[bool, int]:
    """Kill a study's workers at any instant; return whether each cell ends as an undisturbed run, and the kills."""
    settings = {word.partition("=")[0]: yaml.safe_load(word.partition("=")[2]) for word in DIGITS}
    settings |= {"epochs": max(3, kills), "train.save_every": "2 steps", "eval.every": 1000}
    file = StudyFile(about="", recipe="digits", settings=settings, axes={"method": ["hard", "ps_kd"], "seed": [0, 1]})
    study = Study("chaos", file, (), base / "study", "chaos")
    study.save()
    cells = study.cells()
    for key, cell in cells.items():
        assert exit_code(in_child(lambda cell=cell, key=key: train(cell.config, base / "alone" / key))) == 0  # type: ignore[misc]

    def start() -> int:
        return in_child(lambda: Worker(Queue(study, heartbeat=1, grace=2), say=lambda _: None).work())

    workers, killed = [start(), start()], 0
    while killed < kills and not all((study.run_folder(key) / "result.json").exists() for key in cells):
        time.sleep(draw.uniform(0.2, 2.0))
        place = draw.randrange(2)
        os.kill(workers[place], signal.SIGKILL)
        os.waitpid(workers[place], 0)
        workers[place], killed = start(), killed + 1
    Queue(study).try_again()  # cells whose workers died too often
    workers.append(start())
    codes = [exit_code(worker) for worker in workers]
    same = all(equal(base / "alone" / key, study.run_folder(key)) for key in cells)
    return same and not any(codes), killed


def main() -> None:
    kills, wanted = int(sys.argv[1]) if sys.argv[1:] else 50, sys.argv[2:]
    torch.set_num_threads(1)
    good = True
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        with contextlib.redirect_stdout(io.StringIO()):
            train(tiny("epochs=1"), base / "warm-up")  # loads what the forked processes need
        for number, (name, (recipe, world, hosts, words)) in enumerate(KINDS.items()):
            if wanted and name not in wanted:
                continue
            plain, disturbed = base / f"{number}-plain", base / f"{number}-disturbed"
            config = tiny(f"epochs={3 * kills}", *words, recipe=recipe)

            def work(config: Config = config, out: Path = disturbed) -> object:
                return train(config, out, resume=True)

            def start(world: int = world, hosts: int = hosts, work: Callable[[], object] = work) -> list[int]:
                return in_children(work, world, hosts)

            begun = time.monotonic()
            for child in in_children(lambda out=plain, config=config: train(config, out), world, hosts):  # type: ignore[misc]
                assert exit_code(child) == 0
            alone = time.monotonic() - begun
            codes = {exit_code(child) for child in in_children(full_disk(work), world, hosts)}
            seen = Storm(start, disturbed, random.Random(number)).rage(kills)
            same = equal(plain, disturbed)
            good &= same and codes == {2}
            what = ", ".join(f"{count} {kind}" for kind, count in seen.items())
            print(
                f"{name}: {'bit-exact' if same else 'DIFFERENT'} after {what}, and a full disk (exit {codes});"
                f" {time.monotonic() - begun - alone:.0f} s, undisturbed {alone:.0f} s",
                flush=True,
            )
        if not wanted or STUDY in wanted:
            same, killed = disturbed_study(base, kills, random.Random(0))
            good &= same
            print(f"{STUDY}: {'bit-exact' if same else 'DIFFERENT'} after {killed} kills", flush=True)
    sys.exit(not good)


if __name__ == "__main__":
    main()
