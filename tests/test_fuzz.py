"""A small part of `benchmarks/fuzz.py`; the whole of it is run by hand."""

from __future__ import annotations

import pytest

import fuzz


@pytest.mark.timeout(280)
def test_odd_commands_settings_data_and_folders_end_with_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz, "PROCESSES", 0.0)  # a start takes seconds
    count, failures = fuzz.rage(range(60), seed=1)
    assert failures == []
    assert len(count) >= 8
