"""Ensembles: the mean of the runs' softmax outputs, and only of runs that belong together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pskd.errors import PskdError
from pskd.workbench.report.ensembles import ensemble, read
from pskd.workbench.report.tables import comparison


def run(folder: Path, seed: int, *, classes: str = "abc", fingerprint: str = "x") -> Path:
    draw = np.random.default_rng(seed)
    logits = draw.normal(size=(50, 3))
    probs = (np.exp(logits) / np.exp(logits).sum(1, keepdims=True)).astype(np.float32)
    folder.mkdir()
    parts = {"probs": probs, "labels": np.arange(50) % 3, "classes": np.array(list(classes))}
    np.savez(folder / "predictions.npz", fingerprint=np.array(fingerprint), **parts)
    return folder


def test_it_is_the_mean_of_the_probabilities(tmp_path: Path) -> None:
    runs = [run(tmp_path / str(seed), seed) for seed in range(3)]
    results = ensemble(runs)
    mean = sum(np.load(folder / "predictions.npz")["probs"].astype(np.float64) for folder in runs) / 3
    labels = np.arange(50) % 3
    assert results["ensemble"]["top1_error"] == pytest.approx(100 * (mean.argmax(1) != labels).mean())
    assert results["ensemble"]["nll"] == pytest.approx(-np.log(mean[np.arange(50), labels]).mean(), rel=1e-6)
    assert list(results) == [*map(str, runs), "ensemble"]
    lines = comparison(results)
    assert len(lines) == 5
    assert len({len(line) for line in lines}) == 1


def test_runs_that_do_not_belong_together(tmp_path: Path) -> None:
    first = run(tmp_path / "first", 0)
    for name, wrong, message in (
        ("order", {"classes": "acb"}, "another order"),
        ("set", {"fingerprint": "y"}, "another test set"),
    ):
        other = run(tmp_path / name, 1, **wrong)
        with pytest.raises(PskdError, match=message):
            ensemble([first, other])
    with pytest.raises(PskdError, match="at least two"):
        ensemble([first])
    with pytest.raises(PskdError, match="not a finished run"):
        ensemble([first, tmp_path])
    (tmp_path / "set" / "predictions.npz").write_bytes(b"broken")
    with pytest.raises(PskdError, match="cannot be read"):
        ensemble([first, tmp_path / "set"])


def test_a_run_without_probabilities(tmp_path: Path) -> None:
    np.savez(tmp_path / "predictions.npz", translation=np.array(["one"]))
    with pytest.raises(PskdError, match="has no class probabilities"):
        read(tmp_path)
