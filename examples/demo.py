"""Train the same network on the embedded digits with plain cross-entropy and with PS-KD, and compare the two."""

from __future__ import annotations

import shutil
from pathlib import Path

import pskd
from pskd.workbench.report.page import report
from pskd.workbench.report.tables import comparison

RUNS = Path("runs/demo")
# Ten training images per class and no augmentation: so few that a plain model becomes over-confident.
SETTINGS = ["data.per_class=10", "augment.crop=none", "epochs=100", "eval.every=20"]


def main() -> None:
    results, folders = {}, []
    for method, label in (("hard", "plain cross-entropy"), ("ps_kd", "PS-KD")):
        out, words = RUNS / method, [*SETTINGS, f"method={method}"]
        shutil.rmtree(out, ignore_errors=True)
        print(f"\n{label}: pskd train digits {' '.join(words)} --out {out}")
        results[label] = pskd.train("digits", *words, out=out).result
        folders.append(out)
    seed = results["PS-KD"]["seed"]
    print(f"\nTest set of the embedded digits, 100 training images, last epoch, one seed ({seed}); * is better\n")
    print("\n".join(comparison(results)))
    print("\nrun folders:", ", ".join(map(str, folders)))
    report(folders, RUNS / "report.html")
    print("the page that compares them:", (RUNS / "report.html").absolute())


if __name__ == "__main__":
    main()
