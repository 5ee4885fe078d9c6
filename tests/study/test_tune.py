"""The search for a setting: what is held out, the rule of choice, and a whole search."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers import SMALL

from pskd.errors import PskdError
from pskd.workbench.runs.folder import RunFolder
from pskd.workbench.study import tune as tune_module
from pskd.workbench.study.cells import Study, expand
from pskd.workbench.study.queue import Queue, State
from pskd.workbench.study.ranges import SearchRange
from pskd.workbench.study.results import Collection, Row
from pskd.workbench.study.tune import TOGETHER, candidate_lines, choose, draw, score, search, suggest, tune


def test_a_search_holds_out_a_tenth_and_never_shows_the_test_set() -> None:
    study = search("digits", [SearchRange("method.alpha", [0.0, 0.5])], ["epochs=2"], seeds=3)
    cells = list(expand(study).values())
    assert len(cells) == 6
    assert {cell.config.data.val_fraction for cell in cells} == {0.1}  # type: ignore[attr-defined]
    assert study.show.split == "val"
    assert study.show.x == "method.alpha"
    rate = [SearchRange("optim.lr", [], 0.01, 1.0)]
    assert len(expand(search("digits", rate, [], seeds=1, candidates=draw(rate, 4)))) == 4
    with pytest.raises(PskdError, match="add --trials N to let Optuna choose N values, or --random N"):
        search("digits", rate, [], seeds=1)


def npz(folder: Path, *splits: str) -> Path:
    labels = np.arange(40) % 2
    pixels = np.full((40, 8, 8), 100, np.uint8)
    pairs = {"images": pixels, "labels": labels}
    np.savez(folder / "own.npz", **{f"{split}_{part}": array for split in splits for part, array in pairs.items()})
    return folder / "own.npz"


ALPHAS = [SearchRange("method.alpha", [0.0, 0.5])]


def test_nothing_is_held_out_of_data_with_a_validation_split(tmp_path: Path) -> None:
    words = [f"data.root={npz(tmp_path, 'train', 'val', 'test')}"]
    assert "data.val_fraction" not in search("npz", ALPHAS, words, seeds=1).settings
    with pytest.raises(PskdError, match="has a validation split of its own, set it to 0"):
        search("npz", ALPHAS, [*words, "data.val_fraction=0.2"], seeds=1)
    words = [f"data.root={npz(tmp_path, 'train', 'test')}"]
    assert search("npz", ALPHAS, words, seeds=1).settings["data.val_fraction"] == 0.1
    words.append("data.val_fraction=0.25")
    assert search("npz", ALPHAS, words, seeds=1).settings["data.val_fraction"] == 0.25


def test_without_a_validation_split_there_is_nothing_to_choose_by() -> None:
    with pytest.raises(PskdError, match="data=digits has no validation split, so there is nothing to choose by"):
        search("digits", ALPHAS, ["data.val_fraction=0"], seeds=1)


def row(alpha: float, error: float, ece: float, nll: float) -> Row:
    config = SimpleNamespace(model_dump=lambda mode: {"method": {"alpha": alpha}})
    runs: Any = [
        SimpleNamespace(metrics={"top1_error": error + d, "ece": ece - d, "nll": nll}, config=config) for d in (-1, 1)
    ]
    return Row({"method.alpha": str(alpha)}, runs)


def test_accuracy_and_calibration_together() -> None:
    """Lowest mean rank of top-1 error and ECE; a tie goes to the lower NLL."""
    searched = [SearchRange("method.alpha", [])]
    rows = [row(0.0, 24, 12, 1.0), row(0.5, 22, 9, 0.9), row(0.8, 21, 2, 0.8), row(1.0, 20, 15, 0.85)]
    assert score(rows, TOGETHER) == (rows, [3.5, 2.5, 1.5, 2.5])
    for by, alpha in ((TOGETHER, 0.8), ("top1_error", 1.0), ("ece", 0.8)):
        assert choose(rows, searched, by).settings == {"method.alpha": alpha}
    tie = [row(0.1, 20, 5, 0.9), row(0.2, 21, 4, 0.8)]
    assert choose(tie, searched, TOGETHER).settings == {"method.alpha": 0.2}
    with pytest.raises(PskdError, match=r"these runs have no aurc; allowed are .*top1_error\+ece"):
        choose(rows, searched, "aurc")


def test_candidates_are_shown_with_what_they_were_chosen_by() -> None:
    rows = [row(0.0, 24, 12, 1.0), row(0.8, 21, 2, 0.8)]
    rows.append(Row(rows[0].labels, rows[0].runs[:1]))  # one seed was pruned
    choice = choose(rows, [SearchRange("method.alpha", [])], TOGETHER)
    header, *lines = candidate_lines(rows, choice)
    assert header.split() == ["seeds", "Top-1", "err", "(%)", "ECE", "(%)", "NLL"]
    assert [" ".join(line.split()) for line in lines] == [
        "method.alpha=0.0 2 24.00 ± 1.41 12.00 ± 1.41 1.0000 ± 0.0000",
        "method.alpha=0.8 2 21.00 ± 1.41 2.00 ± 1.41 0.8000 ± 0.0000 <- chosen",
        "method.alpha=0.0 1 23.00 13.00 1.0000 (fewer seeds: pruned)",
    ]
    assert len({line.index(" ± ") for line in lines[:2]}) == 1


def test_optuna_comes_closer_and_goes_on_where_it_was() -> None:
    """The best rate is 0.1, the best alpha 0.7 and the best method c."""
    rate, alpha = SearchRange("optim.lr", [], 0.001, 10.0), SearchRange("method.alpha", [n / 10 for n in range(11)])
    ranges = [rate, alpha, SearchRange("method", ["a", "b", "c"])]

    def cost(one: dict[str, Any]) -> float:
        return abs(math.log10(one["optim.lr"]) + 1) + abs(one["method.alpha"] - 0.7) + "cab".index(one["method"]) / 2

    def go_on(candidates: list[dict[str, Any]], trials: int) -> list[dict[str, Any]]:
        while len(candidates) < trials:
            candidates = candidates + suggest(ranges, candidates, [cost(one) for one in candidates], 4)
        return candidates

    candidates = go_on([], 60)
    assert len({str(one) for one in candidates}) == len(candidates) == 60
    assert all(0.001 <= one["optim.lr"] <= 10 and one["method.alpha"] in alpha.values for one in candidates)
    assert statistics.median(map(cost, candidates[30:])) < statistics.median(map(cost, draw(ranges, 1000))) / 2
    assert go_on(go_on([], 20), 60) == candidates


def test_optuna_ends_when_every_value_was_tried() -> None:
    ranges = [SearchRange("method.k", [4, 1, 2])]
    candidates = suggest(ranges, [], [], 10)
    assert sorted(one["method.k"] for one in candidates) == [1, 2, 4]
    assert suggest(ranges, candidates, [1.0, 2.0, 3.0], 10) == []


def test_trials_are_chosen_by_what_came_out_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of four; a pruned setting counts as the worst one; the same command suggests the same again."""
    rounds: list[list[str]] = []

    def run(study: Study, *_: object) -> bool:
        rounds.append(list(study.file.axes.get("trial", [])))
        return True

    def collect(paths: list[Path]) -> list[Collection]:
        if paths[0].name == "final":
            return [Collection("", "", [row(0.5, 20, 5, 1.0)])]
        alphas = [float(label.partition("=")[2]) for label in rounds[-1]]
        rows = [row(alpha, abs(alpha - 0.3), 0, 0) for alpha in alphas]
        rows = [Row({"trial": label}, each.runs) for label, each in zip(rounds[-1], rows, strict=True)]
        return [Collection("", "", [rows[0], Row(rows[1].labels, rows[1].runs[:1]), *rows[3:]])]

    monkeypatch.setattr(tune_module.worker, "run", run)
    monkeypatch.setattr(tune_module, "collect", collect)
    monkeypatch.setattr(tune_module, "final_lines", lambda _: [])
    seen: list[list[float]] = []
    monkeypatch.setattr(
        tune_module,
        "suggest",
        lambda *words: seen.append(list(words[2])) or suggest(*words),  # type: ignore[func-returns-value]
    )
    ranges = [SearchRange("method.alpha", [], 0.0, 1.0)]
    for _ in range(2):
        tune("digits", ranges, [], tmp_path, seeds=2, trials=10, by="top1_error", say=lambda _: None)
    assert [len(one) for one in rounds] == [4, 8, 10, 0] * 2
    assert rounds[:4] == rounds[4:]
    assert rounds[2][:8] == rounds[1]
    assert all(costs[1] == costs[2] == max(costs) for costs in seen if costs)
    with pytest.raises(PskdError, match="--trials and --random exclude each other"):
        tune("digits", ranges, [], tmp_path, trials=1, draws=1)


def test_runs_that_are_worse_than_the_median_are_given_up(tmp_path: Path) -> None:
    file = search("digits", [SearchRange("optim.lr", [0.1 * n for n in range(1, 8)])], ["epochs=6"], seeds=1)
    study = Study.of("search", file.model_copy(update={"prune": True}), tmp_path)
    study.save()
    queue = Queue(study)
    queue.advance()
    seen: list[int] = []

    def train(cell: Any, after_epoch: Any) -> float:
        """One run after the other is worse than those before it."""
        seen.append(0)
        for epoch in range(1, 7):
            seen[-1] = epoch
            after_epoch({"epoch": epoch, "val": {"top1_error": 10.0 + len(seen)}})
        return 0.0

    for _ in study.cells():
        queue.take(train)
    assert seen == [6, 6, 6, 6, 6, 2, 2]  # five to compare with, and a third of the epochs as a start
    states = [standing.state for standing in queue.advance().values()]
    assert states == [State.DONE] * 5 + [State.PRUNED] * 2


@pytest.mark.slow
def test_a_whole_search(tmp_path: Path) -> None:
    lines: list[str] = []
    ranges = [SearchRange("method.alpha", [0.0, 0.8])]
    options: dict[str, Any] = {"seeds": 2, "trials": 3, "workers": 2, "say": lines.append}
    choice = tune("digits", ranges, [*SMALL, "train.threads=1"], tmp_path, **options)  # Optuna tries the two there are
    assert choice.settings["method.alpha"] in (0.0, 0.8)
    assert any(line.startswith("chosen: method.alpha=") for line in lines)
    text = "\n".join(lines)
    assert text.count("<- chosen") == 1
    assert "test result with method.alpha=" in text
    assert all(str(path) in text for path in (tmp_path / "final" / "runs").iterdir())
    final = [RunFolder(path).config() for path in (tmp_path / "final" / "runs").iterdir()]
    assert len(final) == 2
    assert {config.data.val_fraction for config in final} == {0.0}  # type: ignore[attr-defined]
    assert {config.method.alpha for config in final} == {choice.settings["method.alpha"]}  # type: ignore[union-attr]
