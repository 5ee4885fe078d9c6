"""docs/own-data.md is true: its commands run, on small images and with a small model."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from helpers import pskd
from PIL import Image

PAGE = Path(__file__).parents[1] / "docs" / "own-data.md"
COMMANDS = [
    line
    for block in re.findall(r"```bash\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for line in block.splitlines()
    if line.startswith("pskd ")
]
SMALL = ["data.image_size=16", "epochs=1", "batch_size=8", "data.workers=0", "model=resnet8", "model.width=4"]


@pytest.fixture
def birds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table of twenty pictures of two species, and the same as a data set of Hugging Face."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.chdir(tmp_path)
    species = ["owl" if number % 2 else "hen" for number in range(20)]
    files = [f"{number}.png" for number in range(20)]
    for number, file in enumerate(files):
        Image.new("RGB", (20, 20), (10 * number, 100 * (number % 2), 50)).save(file)
    lines = ["file,species", *(f"{file},{name}" for file, name in zip(files, species, strict=True))]
    Path("birds.csv").write_text("\n".join(lines))
    pictures = datasets.Dataset.from_dict({"picture": files, "species": species})
    pictures.cast_column("picture", datasets.Image()).save_to_disk("birds_on_disk")
    return tmp_path


def test_every_command_runs(birds: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert len(COMMANDS) == 2
    for command in COMMANDS:
        _, *words = shlex.split(command)
        place = words.index("--out")
        code, out, err = pskd(capfd, *words[:place], *SMALL, *words[place:])
        assert code == 0, f"{command}: {err}"
        assert "run folder" in out
