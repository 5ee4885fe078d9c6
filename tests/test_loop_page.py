"""docs/loop.md is true: its blocks run one after the other, and do what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from banks import stored
from pages import texts


def test_every_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict[str, Any] = {}
    setup, confidences, mixup, look, longer, stream, compiled = texts("docs/loop.md", "python")
    exec(setup + confidences + mixup, names)
    rows = names["distill"].memory.known(torch.arange(64))
    assert 32 < int(rows.sum()) < 64  # of two epochs, a quarter was mixed in both
    exec(look, names)
    assert [alpha for alpha, _ in names["agreement"]] == [pytest.approx(0.6)] * 4
    said = "epochs=6, but 4 when this state was saved: alpha_t was 0.6 in epoch 2, is 0.4 there now"
    with pytest.warns(UserWarning, match=re.escape(said)):
        exec(longer, names)
    exec(stream, names)
    shown = capsys.readouterr().out
    assert "alpha goes on with 0.53" in shown
    assert shown.endswith("steps=30) at step 29, alpha_t=0.8\n")
    exec(compiled, names)
    assert bool((stored(names["distill"].memory.state_dict()).epoch > 0).all())
