"""docs/integrations.md is run as it stands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pages import texts


@pytest.mark.filterwarnings("ignore")
def test_every_block_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    blocks = texts("docs/integrations.md", "python")
    assert len(blocks) == 6
    for block in blocks:
        exec(block, names)
        if "method" in names:
            assert names["method"].state_dict()["epoch"] == 2
    assert list(Path("hf-run").glob("checkpoint-*/pskd-0-of-1.safetensors"))
    assert list(Path("accelerate-run").glob("custom_checkpoint_0.pkl"))
    assert "method" in names["saved"]
