"""A study that was really run, and a browser to look at its page with."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import Browser, program
from helpers import SMALL, small

from pskd.workbench.study.cells import Study, StudyFile
from pskd.workbench.train.loop import train

NASTY = '<script>alert("x")</script> & "CE"'  # a label that would be a program, were it not shown as text
AXES: dict[str, Any] = {
    "method": {NASTY: {"method": "hard"}, "PS-KD": {"method": "ps_kd"}},
    "seed": [0, 1, 2],
}


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A little npz data set."""
    draw = np.random.default_rng(0)
    labels = np.arange(60) % 3
    pixels = (draw.normal(60 * labels[:, None, None] + 60, 50, (60, 8, 8)).clip(0, 255)).astype(np.uint8)
    file = tmp_path_factory.mktemp("data") / "little.npz"
    np.savez(file, **{f"{s}_{p}": a for s in ("train", "test") for p, a in (("images", pixels), ("labels", labels))})
    return file


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, images: Path) -> Study:
    """Two methods, three seeds, all cells done; the paper has a number for one of the rows."""
    settings = {"data": "npz", "data.root": str(images), "model.width": 4, "batch_size": 20, "epochs": 4}
    paper = {"table": "Table 9", "columns": ["top1_error", "ece"], "rows": {"PS-KD": [20.82, 1.77]}}
    file = StudyFile(about="A little study", recipe="digits", settings=settings, axes=AXES, paper=paper)  # type: ignore[arg-type]
    study = Study("little", file, ("optim.lr=0.05",), tmp_path_factory.mktemp("study"), "little")
    study.save()
    for key, cell in study.cells().items():
        train(cell.config_in(study.runs), study.run_folder(key))
    return study


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = program()
    if path is None:
        pytest.skip("no browser: chromium is not installed")
    with Browser(path) as page:
        yield page


@pytest.fixture(scope="session")
def two_hundred(tmp_path_factory: pytest.TempPathFactory, images: Path) -> list[Path]:
    """Copies of one run: 40 settings with five seeds each."""
    folder = tmp_path_factory.mktemp("many")
    words = [*SMALL, "data=npz", f"data.root={images}", "data.per_class=null", "epochs=2"]
    train(small(*words), folder / "first")
    paths = []
    for number in range(200):
        path = folder / f"run-{number}"
        shutil.copytree(folder / "first", path, ignore=shutil.ignore_patterns("checkpoints", "*.safetensors"))
        config = (path / "config.yaml").read_text().replace("seed: 0", f"seed: {number % 5}")
        (path / "config.yaml").write_text(config.replace("alpha: 0.8", f"alpha: {number // 5 / 40}"))
        paths.append(path)
    return paths
