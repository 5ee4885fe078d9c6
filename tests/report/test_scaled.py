"""Confusions on the page, and the comparison after temperature scaling."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import small

from pskd.calibration import fit_temperature
from pskd.metrics import functional
from pskd.workbench.report.page import report
from pskd.workbench.report.scaled import after_temperature
from pskd.workbench.runs import predictions
from pskd.workbench.study.cells import Study
from pskd.workbench.study.results import collect
from pskd.workbench.train.loop import train


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("scaled")
    paths = [folder / "plain", folder / "ps_kd"]
    for path, method in zip(paths, ("hard", "ps_kd"), strict=True):
        train(small(f"method={method}", "data.val_fraction=0.3", "epochs=2"), path)
    return paths


def test_a_second_table_shows_everybody_calibrated(runs: list[Path], tmp_path: Path) -> None:
    (collection,) = collect(runs)
    table = after_temperature(collection)
    assert table is not None
    (lines,) = table.frames.values()
    for path, line in zip(runs, lines, strict=True):
        val, test = predictions.read(path, "val"), predictions.read(path)
        temperature = fit_temperature(val.probs.log(), val.labels)
        scores = functional.score_samples(test.probs.log() / temperature, test.labels, from_logits=True)
        expected = functional.summarize(scores, 10)
        for name, entry in zip(table.metrics, line.entries, strict=True):
            assert entry is not None
            assert entry.mean == pytest.approx(expected[name], rel=1e-5)
        assert f" {temperature:.3f}" in table.notes[1]
    report(runs, tmp_path / "page.html", table_folder=tmp_path / "tables")
    page = (tmp_path / "page.html").read_text()
    assert "After temperature scaling" in page
    assert "Confusions: " in page
    assert "Most often it takes " in page
    assert (tmp_path / "tables" / "calibrated.csv").is_file()


def test_the_test_set_is_not_looked_at_for_a_temperature(runs: list[Path]) -> None:
    path = runs[0]
    before = after_temperature(collect([path])[0])
    with np.load(path / "predictions.npz") as file:
        arrays = dict(file)
    whole = (path / "predictions.npz").read_bytes()
    arrays["labels"] = (arrays["labels"] + 1) % 10
    np.savez(path / "predictions.npz", **arrays)
    after = after_temperature(collect([path])[0])
    (path / "predictions.npz").write_bytes(whole)
    assert before is not None
    assert after is not None
    assert before.notes[1] == after.notes[1]
    assert before.frames != after.frames


def test_runs_without_a_validation_split_are_said_to_have_none(finished: Study, tmp_path: Path) -> None:
    assert after_temperature(collect([finished.folder])[0]) is None
    report([finished.folder], tmp_path / "page.html")
    assert "No table after temperature scaling" in (tmp_path / "page.html").read_text()


def test_probabilities_of_nothing_do_no_harm(runs: list[Path]) -> None:
    """A network that was sure and wrong has stored a probability of 0 for the true class."""
    path = runs[1]
    with np.load(path / "predictions.npz") as file:
        arrays = dict(file)
    whole = (path / "predictions.npz").read_bytes()
    sure = torch.nn.functional.one_hot(torch.from_numpy(arrays["val_labels"] + 1) % 10, 10).float().numpy()
    arrays["val_probs"][:3] = sure[:3]
    np.savez(path / "predictions.npz", **arrays)
    table = after_temperature(collect([path])[0])
    (path / "predictions.npz").write_bytes(whole)
    assert table is not None
