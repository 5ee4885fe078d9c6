"""Does keeping only the k likeliest classes cost accuracy or calibration? Top-k banks against dense ones.

    python benchmarks/topk_quality.py DATA RUNS --kept 5 --seeds 0 1 2

CIFAR-100 at the laptop scale of results/cifar100-laptop: 20 classes x 100 images, ResNet-8 of width 32, 100 epochs.
DATA is the folder with the published files. Run folders are made in RUNS, or taken from there where they are finished
(the dense ones are called ps_kd-SEED, as in the methods' study), so the command can be repeated after a stop. One run
takes about a quarter of an hour on one thread. Prints the difference of top-k and dense with the same seed, mean and
standard deviation over the seeds, beside the mean and standard deviation of the dense runs.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

from pskd.metrics.catalogue import METRICS, paper_columns
from pskd.workbench.config import resolve
from pskd.workbench.recipes import read_recipe
from pskd.workbench.study.cells import read_study
from pskd.workbench.train.loop import train

STUDY = read_study("studies/cifar100_small")


def result(data: str, out: Path, seed: int, *words: str) -> dict[str, Any]:
    assert STUDY.recipe is not None
    shared = [f"{name}={value}" for name, value in STUDY.settings.items()]
    settings = [f"data.root={data}", *shared, f"seed={seed}", "method=ps_kd", *words]
    return train(resolve(read_recipe(STUDY.recipe), settings, name=STUDY.recipe), out, resume=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="the folder with CIFAR-100's published files")
    parser.add_argument("runs", type=Path, help="the folder of the run folders")
    parser.add_argument("--kept", type=int, nargs="+", default=[5], help="k, of 20 classes")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    given = parser.parse_args()
    if len(given.seeds) < 2:
        parser.error("--seeds: give at least two, or there is no deviation")
    dense = [result(given.data, given.runs / f"ps_kd-{seed}", seed) for seed in given.seeds]
    rows, names = {"dense": dense}, paper_columns(dense[0])
    for k in given.kept:
        words = "method.form=topk", f"method.k={k}"
        topk = [result(given.data, given.runs / f"ps_kd-top{k}-{seed}", seed, *words) for seed in given.seeds]
        rows[f"top {k} minus dense"] = [
            {name: own[name] - whole[name] for name in names} for own, whole in zip(topk, dense, strict=True)
        ]
    print(f"{'':<20}" + "".join(f"{METRICS[name].heading:>20}" for name in names))
    for title, results in rows.items():
        columns = [[one[name] for one in results] for name in names]
        cells = [f"{statistics.mean(column):.3f} +- {statistics.stdev(column):.3f}" for column in columns]
        print(f"{title:<20}" + "".join(f"{cell:>20}" for cell in cells))


if __name__ == "__main__":
    main()
