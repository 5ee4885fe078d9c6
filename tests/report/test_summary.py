"""The table: means, deviations, the best, what is significant, and the paper's numbers."""

from __future__ import annotations

import csv
import io
import json
import shutil
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rows import make_row
from scipy.stats import t, ttest_rel

from pskd.workbench.report.ensembles import ensemble
from pskd.workbench.report.significance import paired_chance
from pskd.workbench.report.summary import by_class, compare, compare_ensembles
from pskd.workbench.report.table import TableCell
from pskd.workbench.study.cells import Paper, Study
from pskd.workbench.study.results import Collection, Row, collect


def row(name: str, errors: list[float], changed: tuple[str, ...] = ()) -> Row:
    signatures = {"top1_error": "nrefs:1|case:mixed", "chrf": "not shown"}
    method = "hard" if name == "CE" else "ps_kd"
    labels = {"model": "ResNet", "method": name}
    return make_row(labels, {"top1_error": errors}, method, changed=changed, result={"signatures": signatures})


def collection(*rows: Row, **options: Any) -> Collection:
    return Collection("study", "about", rows, **options)


def test_mean_deviation_and_best() -> None:
    table = compare(collection(row("CE", [20.0, 22.0]), row("PS-KD", [18.0, 19.0])))
    first, second = table.frames["ResNet"]
    assert first.baseline
    low, high = t.interval(0.95, 1, 21.0, statistics.stdev([20.0, 22.0]) / 2**0.5)
    assert first.cells["top1_error"] == (
        21.0,
        statistics.stdev([20.0, 22.0]),
        False,
        "",
        None,
        pytest.approx(low),
        pytest.approx(high),
        None,
    )
    assert second.cells["top1_error"] is not None
    assert second.cells["top1_error"].best
    assert table.shown("top1_error", second.cells["top1_error"]) == "18.50 ± 0.71"
    assert table.notes[-1] == "Top-1 err (%): nrefs:1|case:mixed."


def test_a_row_alone_is_compared_with_nothing() -> None:
    assert compare(collection(row("CE", [20.0, 21.0, 22.0]))).notes[0] == "Mean ± standard deviation over seeds."
    assert len(compare(collection(row("CE", [20.0, 21.0, 22.0]))).notes) == 2  # and the signature


def test_one_seed_has_no_deviation_and_proves_nothing() -> None:
    table = compare(collection(row("CE", [20.0]), row("PS-KD", [1.0])))
    assert table.frames["ResNet"][1].cells["top1_error"] == (1.0, None, True, "", None, None, None, None)
    assert not table.has_intervals
    assert any("no difference here is called significant" in note for note in table.notes)


def test_significance_is_a_paired_test_with_correction_for_the_number_of_rows() -> None:
    plain = [20.0, 24.0, 22.0]
    sure, unsure = [value - 5 - 0.1 * i for i, value in enumerate(plain)], [19.0, 24.5, 21.0]
    table = compare(collection(row("CE", plain), row("A", sure), row("B", unsure)))
    assert [line.cells["top1_error"].verdict for line in table.frames["ResNet"] if line.cells["top1_error"]] == [
        "",
        "better",
        "",
    ]
    entry = table.frames["ResNet"][1].cells["top1_error"]
    assert entry is not None
    assert table.change("top1_error", entry) == "↓ better"
    assert table.interval("top1_error", entry) == "-5.35 to -4.85"
    assert "**16.90 ± 1.95**†" in table.markdown()
    assert table.markdown().endswith("\n\n† better.\n")
    assert not any("†" in note for note in table.notes)  # the page says it in words
    # Alone at p = 0.036, but not among three.
    close = [value + difference for value, difference in zip(plain, (-1.0, -1.5, -1.2), strict=True)]
    chance = paired_chance([-1.0, -1.5, -1.2])
    assert chance == pytest.approx(ttest_rel(close, plain).pvalue)
    spread = [value + difference for value, difference in zip(plain, (-1.0, -1.8, -1.9), strict=True)]
    assert 0.03 < paired_chance([-1.0, -1.8, -1.9]) < 0.05
    alone = compare(collection(row("CE", plain), row("A", spread)))
    among = compare(collection(row("CE", plain), row("A", spread), row("B", unsure), row("C", unsure)))
    assert alone.frames["ResNet"][1].cells["top1_error"].verdict == "better"  # type: ignore[union-attr]
    assert not among.frames["ResNet"][1].cells["top1_error"].verdict  # type: ignore[union-attr]
    # The baseline is the plain row, wherever it stands; what is worse is said as well.
    turned = compare(collection(row("A", [value + 5 + 0.1 * i for i, value in enumerate(plain)]), row("CE", plain)))
    assert [line.baseline for line in turned.frames["ResNet"]] == [False, True]
    assert turned.frames["ResNet"][0].cells["top1_error"].verdict == "worse"  # type: ignore[union-attr]
    assert "27.10 ± 2.05‡" in turned.markdown()
    assert r"$^\ddagger$" in turned.latex()


def test_false_claims_are_rare() -> None:
    """Five methods that do not differ: at most one table in twenty says that any of them does."""
    draw = np.random.default_rng(0)
    wrong = 0
    for _ in range(300):
        rows = [row(str(name), draw.normal(20, 1, 3).tolist()) for name in range(5)]
        lines = compare(collection(*rows)).frames["ResNet"]
        wrong += any(line.cells["top1_error"].verdict for line in lines if line.cells["top1_error"])
    assert wrong <= 27  # 15 expected at the most; 27 has a chance of one in a thousand


def test_the_papers_numbers_are_marked_where_settings_differ() -> None:
    paper = Paper(table="Table 1", columns=("top1_error",), rows={"ResNet · CE": (24.18,)})
    rows = row("CE", [20.0, 22.0], ("train.epochs: 300, 3",)), row("PS-KD", [18.0, 19.0])
    table = compare(collection(*rows, paper=paper))
    assert "21.00 ± 1.41 (paper 24.18\\*)" in table.markdown()
    assert "train.epochs: 300, 3" in table.markdown()
    assert r"$21.00 \pm 1.41$ (paper 24.18$^*$)" in table.latex()
    assert r"{\boldmath$18.50 \pm 0.71$}" in table.latex()


def test_rows_that_the_paper_quotes_stand_by_themselves() -> None:
    literature = {"DenseNet-264": (22.15, None)}
    paper = Paper(table="Table 4", columns=("top1_error", "nll"), rows={}, literature=literature)
    table = compare(collection(row("CE", [23.0, 25.0]), row("PS-KD", [24.0, 25.0]), paper=paper))
    assert list(table.frames) == ["literature", "ResNet"]
    (quoted,) = table.frames["literature"]
    assert (quoted.label, quoted.seeds) == ("DenseNet-264", 0)
    assert quoted.cells == {"top1_error": TableCell(22.15)}
    assert table.frames["ResNet"][0].cells["top1_error"].best  # type: ignore[union-attr]  # among the runs
    assert table.notes[-1] == "Literature: what Table 4 quotes from others, no run of ours."
    assert "| literature · DenseNet-264 | 0 | 22.15 |" in table.markdown()


def test_average_precision_by_class_beside_the_papers() -> None:
    def detector(name: str, *precision: dict[str, float]) -> Row:
        return make_row({"trunk": name}, {"ap_per_class": precision}, "hard")

    classes = Paper(table="Table S3", columns=("cat", "dog"), rows={"LS": (0.8749, 0.8782)})
    paper = Paper(table="Table 5", columns=("map50",), rows={}, by_class=classes)
    rows = detector("CE", {"dog": 0.5, "cat": 0.25}), detector("LS", {"dog": 0.75, "cat": 0.2}, {"dog": 0.85})
    table = by_class(collection(*rows, paper=paper))
    assert table is not None
    assert list(table.metrics) == ["dog", "cat"]
    assert "| LS | 2 | **0.8000 ± 0.0707** (paper 0.8782) | 0.2000 (paper 0.8749) |" in table.markdown()
    assert "| CE | 1 | 0.5000 | **0.2500** |" in table.markdown()
    assert table.notes[-1] == "In brackets or below: the paper's Table S3."
    assert by_class(collection(row("CE", [20.0]))) is None


def test_names_cannot_break_a_table() -> None:
    name = r"a|b & c_d *e* \f <g>"
    table = compare(collection(row(name, [1.0]), row("CE", [2.0])))
    assert r"a\|b & c\_d \*e\* \\f \<g\>" in table.markdown()
    assert r"a|b \& c\_d *e* \textbackslash{}f <g>" in table.latex()
    assert next(line for line in csv.DictReader(io.StringIO(table.csv())) if line["row"] == name)["seeds"] == "1"


def test_a_study_and_its_ensembles(finished: Study) -> None:
    (study,) = collect([finished.folder])
    table, ensembles = compare(study), compare_ensembles(study)
    runs = [finished.run_folder(key) for key, cell in finished.cells().items() if cell.labels["method"] == "PS-KD"]
    expected = ensemble(runs)
    line, joined = table.frames[""][1], ensembles.frames[""][1]
    values = [each["nll"] for name, each in expected.items() if name != "ensemble"]
    assert line.cells["nll"].mean == pytest.approx(statistics.fmean(values), abs=1e-6)  # type: ignore[union-attr]
    assert joined.cells["nll"].mean == expected["ensemble"]["nll"]  # type: ignore[union-attr]
    assert line.changed  # by optim.lr on the command line
    assert table.frames[""][1].cells["top1_error"].paper == 20.82  # type: ignore[union-attr]
    assert ensembles.frames[""][1].cells["top1_error"].paper is None  # type: ignore[union-attr]


def test_a_study_that_was_cut_says_what_was_chosen(finished: Study, tmp_path: Path) -> None:
    """Its title may speak of five methods, or of other seeds."""
    cut = Study("cut", finished.file, ("seed=0,2", "optim.lr=0.05"), tmp_path / "cut", "cut")
    cut.save()
    for key in cut.cells():
        shutil.copytree(finished.run_folder(key), cut.run_folder(key))
    (study,), (whole,) = collect([cut.folder]), collect([finished.folder])
    assert (study.about, whole.about) == ("Chosen of the study: seed=0,2", "")
    assert {run.seed for run in study.runs} == {0, 2}
    assert study.compared == "method"


def test_runs_named_one_by_one_are_rows_by_what_differs(finished: Study, tmp_path: Path) -> None:
    (runs,) = collect([finished.run_folder(key) for key in finished.cells()])
    assert [(row.name, len(row.runs)) for row in runs.rows] == [("plain cross-entropy", 3), ("PS-KD", 3)]
    assert runs.title == "Plain cross-entropy and PS-KD on little.npz"


def test_a_run_that_differs_in_many_settings_is_named_by_its_folder(finished: Study, tmp_path: Path) -> None:
    one = finished.run_folder(next(iter(finished.cells())))
    other = Path(shutil.copytree(one, tmp_path / "other"))
    text = (other / "config.yaml").read_text()
    changes = {
        "momentum: 0.9": "momentum: 0.5",
        "gamma: 0.1": "gamma: 0.5",
        "hole: 8": "hole: 7",
        "beta: 1.0": "beta: 2.0",
    }
    for before, after in changes.items():
        assert before in text
        text = text.replace(before, after)
    (other / "config.yaml").write_text(text)
    (runs,) = collect([one, other])
    assert [row.name for row in runs.rows] == [f"plain cross-entropy ({one.name})", "plain cross-entropy (other)"]


def test_the_same_settings_and_seed_twice_are_two_rows(finished: Study, tmp_path: Path) -> None:
    one = finished.run_folder(next(iter(finished.cells())))
    other = Path(shutil.copytree(one, tmp_path / "again"))
    (runs,) = collect([one, other])
    assert [row.name for row in runs.rows] == [f"plain cross-entropy ({path})" for path in (one, other)]


def test_runs_on_different_data_are_never_in_one_table(finished: Study, tmp_path: Path) -> None:
    one, two, *_ = [finished.run_folder(key) for key in finished.cells()]
    tested = Path(shutil.copytree(two, tmp_path / "tested elsewhere"))
    with np.load(tested / "predictions.npz") as file:
        np.savez(tested / "predictions.npz", **{**file, "fingerprint": np.array("another")})
    taught = Path(shutil.copytree(two, tmp_path / "taught elsewhere"))
    result = json.loads((taught / "result.json").read_text())
    (taught / "result.json").write_text(json.dumps({**result, "data_fingerprint": "another"}))
    assert [len(each.runs) for each in collect([one, two])] == [2]
    assert [len(each.runs) for each in collect([one, tested, two, taught])] == [2, 1, 1]
