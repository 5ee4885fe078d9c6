"""Processor seconds of `pskd predict RUN one.png`, from the command to its answer, against a bare minimum.

The minimum is a script that imports torch and reads the weights. Both are new processes, alternately, on one thread.
Prints one ratio of processor time, and one of time. Target: at most 1.3.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from side_by_side import alternate, median

BARE = "import sys, torch; from safetensors.torch import load_file; load_file(sys.argv[1])"
ROUNDS = 7


def main() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        run, image = Path(folder) / "run", Path(folder) / "one.png"
        Image.fromarray(np.random.default_rng(0).integers(0, 256, (8, 8), dtype=np.uint8)).save(image)
        words = [sys.executable, "-m", "pskd", "train", "digits", "epochs=1", "--out", str(run)]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        used: list[list[float]] = [[], []]

        def counted(which: int, words: list[str]) -> None:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            used[which].append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)

        seconds = alternate(
            lambda: counted(0, ["-c", BARE, str(run / "model.safetensors")]),
            lambda: counted(1, ["-m", "pskd", "predict", str(run), str(image)]),
            rounds=ROUNDS,
            warmup=1,
        )
    for what, (bare, predict) in (("processor time", used), ("time", seconds)):
        print(f"{what}: bare {median(bare[-ROUNDS:])} s, predict {median(predict[-ROUNDS:])} s")
        ratios = [b / a for a, b in zip(bare[-ROUNDS:], predict[-ROUNDS:], strict=True)]
        print(f"ratio by {what}: {median(ratios)}")


if __name__ == "__main__":
    main()
