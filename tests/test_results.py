"""The pages of results/ say what their CSV files say."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

RESULTS = Path(__file__).parents[1] / "results"
TABLES = runpy.run_path(str(RESULTS / "tables.py"))
PAGES: dict[str, list[str]] = TABLES["pages"]()


@pytest.mark.parametrize("page", PAGES)
def test_every_row_of_a_table_is_that_of_its_runs(page: str) -> None:
    text = (RESULTS / page / "README.md").read_text(encoding="utf-8")
    assert PAGES[page]
    assert [row for row in PAGES[page] if row not in text] == []


def test_maps_are_drawn_of_every_alpha_and_metric() -> None:
    found = {figure.name: figure for figure in TABLES["figures"]()}
    metrics = ("top1-error", "nll", "ece", "aurc")
    assert found.keys() == {
        f"map-alpha-{alpha}-{metric}" for alpha in ("0-3", "0-5", "0-8", "auto") for metric in metrics
    }
    assert "epochs 300" in found["map-alpha-0-8-ece"].alt
