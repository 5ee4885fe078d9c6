"""From the command to the first step of a training: `pskd train digits` over a bare script, at most 1.15.

    python benchmarks/startup.py [--rounds N]

The bare script imports the same libraries, reads the same data and makes one step of the same kind of network; a second
one leaves out accelerate, which a script for one machine can do without. Each is a process of its own, and they take
turns. Ratios are of the processor's seconds, user and system, which a busy machine changes little, and of the clock's.
And of our command: how long after its imports it has said what it is (at most 1 s).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from side_by_side import median

# The hook of torch ends the process after the first step of any optimizer.
END = """
import os, time, torch
from torch.optim.optimizer import register_optimizer_step_post_hook
register_optimizer_step_post_hook(lambda *_: os._exit(0))
"""
OURS = f"""{END}
import builtins, sys
say = builtins.print
def first(*words, **options):
    say("SAID", time.process_time() - used, time.monotonic() - begun, file=sys.stderr, flush=True)
    say(*words, **options)
    builtins.print = say
builtins.print = first
import torchvision, pskd.workbench.cli
import pskd.workbench.train.loop, pskd.workbench.report.tables, pskd.workbench.tasks.classification
from pskd.__main__ import main
used, begun = time.process_time(), time.monotonic()
sys.argv = ["pskd", "train", "digits", "--out", sys.argv[1]]
main()
"""
BARE = f"""{END}
import numpy, {{libraries}}
import torch.nn.functional as F
from importlib.util import find_spec
from pathlib import Path
from torch import nn
folder = find_spec("sklearn").submodule_search_locations[0]
table = torch.from_numpy(numpy.loadtxt(Path(folder, "datasets", "data", "digits.csv.gz"), delimiter=","))
images, labels = table[:, :-1].float().view(-1, 1, 8, 8) / 16, table[:, -1].long()
channels, layers = 1, []
for width in [16] * 3 + [32] * 2 + [64] * 2:
    layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
    channels = width
model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
F.cross_entropy(model(images[:64]), labels[:64]).backward()
optimizer.step()
"""
SCRIPTS = {
    "ours": OURS,
    "bare": BARE.format(libraries="accelerate, torchvision.transforms.v2, pydantic, safetensors.torch, yaml"),
    "without accelerate": BARE.format(libraries="torchvision.transforms.v2"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in SCRIPTS}
    said: list[list[float]] = []
    for number in range(rounds + 1):  # the first one brings files into memory
        for name, script in SCRIPTS.items():
            seconds, errors = taken(script)
            if number:
                found[name].append(seconds)
                lines = [line.split()[1:] for line in errors.splitlines() if line.startswith("SAID")]
                said += [[float(word) for word in line] for line in lines]
    for place, clock in enumerate(("processor", "clock")):
        own, *others = ([times[place] for times in side] for side in found.values())
        print(f"{clock}: ours {median(own)} s")
        for name, theirs in zip(list(found)[1:], others, strict=True):
            print(f"  over {name}: {median([a / b for a, b in zip(own, theirs, strict=True)])}")
        print(f"  first line, seconds after the imports: {median([seconds[place] for seconds in said])}")


def taken(script: str) -> tuple[tuple[float, float], str]:
    """Seconds of the processor and of the clock that a script takes, and what it writes to its error output."""
    with tempfile.TemporaryDirectory() as folder:
        before, start = os.times(), time.monotonic()
        command = [sys.executable, "-c", script, str(Path(folder, "run"))]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        clock, after = time.monotonic() - start, os.times()
    processor = after.children_user + after.children_system - before.children_user - before.children_system
    return (processor, clock), done.stderr


if __name__ == "__main__":
    main()
