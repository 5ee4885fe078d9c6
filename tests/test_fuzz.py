"""A small part of `benchmarks/fuzz.py`; the whole of it is run by hand."""

from __future__ import annotations

import pytest

import fuzz
from fuzzing import settings

KINDS = ("settings", "recipe files", "searches", "commands", "places", "run folders", "arrays", "image folders")


def test_odd_commands_settings_data_and_folders_end_with_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz, "PROCESSES", 0.0)  # a start takes seconds
    monkeypatch.setattr(fuzz, "KINDS", {name: fuzz.KINDS[name] for name in KINDS})
    monkeypatch.setattr(settings, "RECIPES", {"digits": settings.RECIPES["digits"]})
    count, failures = fuzz.rage(range(40), seed=1, images_only=True)
    assert failures == []
    assert len(count) >= 6
