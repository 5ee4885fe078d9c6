"""Confusions on the page, and the comparison after temperature scaling."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers import small

from pskd.calibration import fit_temperature
from pskd.metrics import functional
from pskd.workbench.report.page import report
from pskd.workbench.report.summary import after_temperature
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
        for name, entry in line.cells.items():
            assert entry is not None
            assert entry.mean == pytest.approx(expected[name], rel=1e-5)
        assert f" {temperature:.3f}" in table.notes[1]
    report(runs, tmp_path / "page.html", table_folder=tmp_path / "tables")
    page = (tmp_path / "page.html").read_text()
    assert "After temperature scaling" in page
    assert "Confusions: " in page
    assert "Most often it takes " in page
    assert (tmp_path / "tables" / "calibrated.csv").is_file()


def copy_with(run: Path, folder: Path, change: Callable[[dict[str, np.ndarray]], None]) -> Path:
    """A copy of a run with other predictions."""
    copy = Path(shutil.copytree(run, folder / "copy"))
    with np.load(run / "predictions.npz") as file:
        arrays = dict(file)
    change(arrays)
    np.savez(copy / "predictions.npz", **arrays)
    return copy


def test_the_test_set_does_not_change_a_temperature(runs: list[Path], tmp_path: Path) -> None:
    changed = copy_with(runs[0], tmp_path, lambda arrays: arrays.update(labels=(arrays["labels"] + 1) % 10))
    before, after = (after_temperature(collect([path])[0]) for path in (runs[0], changed))
    assert before is not None
    assert after is not None
    assert before.notes[1] == after.notes[1]
    assert before.frames != after.frames


def test_the_page_says_that_there_is_no_validation_split(finished: Study, tmp_path: Path) -> None:
    assert after_temperature(collect([finished.folder])[0]) is None
    report([finished.folder], tmp_path / "page.html")
    assert "No table after temperature scaling" in (tmp_path / "page.html").read_text()


def test_a_stored_probability_may_be_0(runs: list[Path], tmp_path: Path) -> None:
    """A network that was certain and wrong has stored 0 for the true class."""

    def change(arrays: dict[str, np.ndarray]) -> None:
        arrays["val_probs"][:3] = np.eye(10, dtype=np.float32)[(arrays["val_labels"][:3] + 1) % 10]

    assert after_temperature(collect([copy_with(runs[1], tmp_path, change)])[0]) is not None
