"""Train the same network on the embedded digits with plain cross-entropy and with PS-KD, and compare the two."""

from __future__ import annotations

import shutil
from pathlib import Path

from pskd.config import resolve
from pskd.engine.loop import train
from pskd.recipes import read_recipe
from pskd.report.tables import comparison

RUNS = Path("runs/demo")


def main() -> None:
    recipe = read_recipe("digits")
    results, folders = {}, []
    for method, label in (("hard", "plain cross-entropy"), ("ps_kd", "PS-KD")):
        out = RUNS / method
        shutil.rmtree(out, ignore_errors=True)
        print(f"\n{label}: pskd train digits method={method} --out {out}")
        results[label] = train(resolve(recipe, [f"method={method}"], name="digits"), out)
        folders.append(str(out))
    seed = next(iter(results.values()))["seed"]
    print("\nTest set of the embedded digits, last epoch, seed", seed, "(* is better)\n")
    print("\n".join(comparison(results, ("top1_error", "nll", "ece", "aurc"))))
    print("\nrun folders:", ", ".join(folders))


if __name__ == "__main__":
    main()
