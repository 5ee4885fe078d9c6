"""Our ECE + AURC against torchmetrics' ECE plus a vectorised numpy AURC, on 1,000,000 x 100 probabilities.

    python benchmarks/metrics.py

Both sides start from the same probabilities and labels, check their arguments, as they do by default, and have one
thread: numpy has no more, and with two a busy second core decides the ratio. Ours are the two plain calls, each of
which finds confidences and hits for itself; a line before shows what sharing them gains. The last figure is their time
over ours.
"""

from __future__ import annotations

import resource
import subprocess
import sys

import numpy as np
import psutil
import torch
from side_by_side import alternate, median
from torch import Tensor

from pskd.metrics import functional

SAMPLES, CLASSES, BINS = 1_000_000, 100, 10
MEGABYTE = 1e6


def make_predictions() -> tuple[Tensor, Tensor]:
    """A classifier with about 18% errors, made piece by piece: the child's memory peak must not be this function's."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(CLASSES, (SAMPLES,), generator=generator)
    probs = torch.empty(SAMPLES, CLASSES)
    for rows, y in zip(probs.split(10_000), labels.split(10_000), strict=True):
        rows.normal_(generator=generator)
        rows[torch.arange(len(y)), y] += 3.5
        torch.softmax(2 * rows, 1, out=rows)
    return probs, labels


def ours(probs: Tensor, labels: Tensor) -> tuple[float, float]:
    ece = functional.expected_calibration_error(probs, labels, BINS)
    return ece.item(), functional.area_under_risk_coverage(probs, labels).item()


def ours_shared(probs: Tensor, labels: Tensor) -> tuple[float, float]:
    sample = functional.confidence_and_correct(probs, labels)
    ece = functional.expected_calibration_error_from(*sample, BINS)
    return ece.item(), functional.area_under_risk_coverage_from(*sample).item()


def theirs(probs: Tensor, labels: Tensor) -> tuple[float, float]:
    from torchmetrics.classification import MulticlassCalibrationError

    ece = MulticlassCalibrationError(num_classes=CLASSES, n_bins=BINS, norm="l1")
    ece.update(probs, labels)
    rows = probs.numpy()
    order = np.argsort(-rows.max(1))
    errors = np.cumsum((rows.argmax(1) != labels.numpy())[order])
    return ece.compute().item(), (errors / np.arange(1, len(errors) + 1)).mean().item()


def extra_memory() -> float:
    """Bytes that our two calls need at their peak, over what the process had with its inputs; run in a child."""
    probs, labels = make_predictions()
    with_inputs = psutil.Process().memory_info().rss
    ours(probs, labels)
    unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit - with_inputs


def main() -> None:
    # Before this process grows: Linux starts a child's peak at its parent's.
    child = subprocess.run([sys.executable, __file__, "--extra-memory"], stdout=subprocess.PIPE, text=True, check=True)
    torch.set_num_threads(1)
    probs, labels = make_predictions()
    # Their bin means are in float32, and they rank tied samples as they happen to stand.
    np.testing.assert_allclose(ours(probs, labels), theirs(probs, labels), rtol=1e-3)

    plain, shared, other = alternate(
        lambda: ours(probs, labels), lambda: ours_shared(probs, labels), lambda: theirs(probs, labels)
    )
    print(f"{SAMPLES:,} x {CLASSES} probabilities, {BINS} bins, one thread")
    print(f"ours {median(plain)} s, sharing confidences {median(shared)} s, torchmetrics + numpy {median(other)} s")
    print(f"speed-up when confidences are shared: {median([o / s for o, s in zip(other, shared, strict=True)])}")
    inputs = probs.nbytes / MEGABYTE
    print(f"peak extra memory: {float(child.stdout) / MEGABYTE:.0f} MB (allowed: the inputs' own {inputs:.0f} MB)")
    print(f"speed-up: {median([o / p for o, p in zip(other, plain, strict=True)])}")


if __name__ == "__main__":
    if sys.argv[1:] == ["--extra-memory"]:
        print(extra_memory())
    else:
        main()
