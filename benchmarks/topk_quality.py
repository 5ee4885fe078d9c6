"""Does keeping only the k likeliest classes cost accuracy or calibration? Top-k banks against dense ones.

    python benchmarks/topk_quality.py DATA RUNS [SEED...]

CIFAR-100 at the laptop scale of results/cifar100-laptop: 20 classes x 100 images, ResNet-8 of width 32, 100 epochs.
DATA is the folder with the published files. Run folders are made in RUNS, or taken from there where they are finished
(the dense ones are called ps_kd-SEED, as in the methods' study), so the command can be repeated after a stop. One run
takes about a quarter of an hour on one thread. Prints the mean over seeds of top-k minus dense for each metric, beside
the standard deviation of the dense runs.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any

from pskd.config import resolve
from pskd.engine.loop import train
from pskd.metrics.catalogue import METRICS
from pskd.recipes import read_recipe
from pskd.report.tables import PAPER_COLUMNS

KEPT = (2, 5, 10)  # of 20 classes
RECIPE = "cifar100/preact_resnet18"


def result(data: str, out: Path, seed: int, *words: str) -> dict[str, Any]:
    settings = [f"data.root={data}", "data.num_classes=20", "data.per_class=100", "model=resnet8", "model.width=32"]
    settings += ["epochs=100", "eval.every=5", f"seed={seed}", "method=ps_kd", *words]
    return train(resolve(read_recipe(RECIPE), settings, name=RECIPE), out, resume=True)


def main() -> None:
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    data, runs, seeds = sys.argv[1], Path(sys.argv[2]), [int(seed) for seed in sys.argv[3:]] or [0, 1, 2]
    dense = {seed: result(data, runs / f"ps_kd-{seed}", seed) for seed in seeds}
    topk = {
        k: {
            seed: result(data, runs / f"ps_kd-top{k}-{seed}", seed, "method.form=topk", f"method.k={k}")
            for seed in seeds
        }
        for k in KEPT
    }
    print(f"{'':<24}" + "".join(f"{METRICS[name].title:>16}" for name in PAPER_COLUMNS))
    rows = {"dense, mean": [statistics.mean(dense[seed][name] for seed in seeds) for name in PAPER_COLUMNS]}
    if len(seeds) > 1:
        rows["dense, deviation"] = [statistics.stdev(dense[seed][name] for seed in seeds) for name in PAPER_COLUMNS]
    for k, results in topk.items():
        rows[f"top {k} minus dense"] = [
            statistics.mean(results[seed][name] - dense[seed][name] for seed in seeds) for name in PAPER_COLUMNS
        ]
    for title, values in rows.items():
        print(f"{title:<24}" + "".join(f"{value:>16.3f}" for value in values))


if __name__ == "__main__":
    main()
