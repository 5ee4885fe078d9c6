"""docs/own-data.md and docs/fine-tuning.md are true: their commands run, on small images and with small models."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers import pskd
from pages import commands
from PIL import Image

from pskd.workbench.config import resolve
from pskd.workbench.recipes import read_recipe
from pskd.workbench.tasks.classification import Classification

COMMANDS = [words for page in ("docs/own-data.md", "docs/fine-tuning.md") for words in commands(page)]
SMALL = ["data.image_size=16", "epochs=1", "batch_size=8", "data.workers=0"]
TINY = ["model=resnet8", "model.width=4"]


@pytest.fixture
def birds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Twenty pictures of two species: in a table, as a data set of Hugging Face and in class folders."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.chdir(tmp_path)
    species = ["owl" if number % 2 else "hen" for number in range(20)]
    files = [f"{number}.png" for number in range(20)]
    for number, (file, name) in enumerate(zip(files, species, strict=True)):
        picture = Image.new("RGB", (20, 20), (10 * number, 100 * (number % 2), 50))
        picture.save(file)
        folder = Path("my/images", "test" if number < 4 else "train", name)
        folder.mkdir(parents=True, exist_ok=True)
        picture.save(folder / file)
    lines = ["file,species", *(f"{file},{name}" for file, name in zip(files, species, strict=True))]
    Path("birds.csv").write_text("\n".join(lines))
    pictures = datasets.Dataset.from_dict({"picture": files, "species": species})
    pictures.cast_column("picture", datasets.Image()).save_to_disk("birds_on_disk")
    return tmp_path


def test_every_command_runs(birds: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """But that with a model of timm, whose weights would have to be fetched; torchvision's are made here."""
    from torchvision.models import get_model, get_model_weights

    monkeypatch.setenv("TORCH_HOME", str(birds))
    monkeypatch.setenv("XDG_CACHE_HOME", str(birds / "cache"))
    cached = birds / "hub" / "checkpoints" / get_model_weights("resnet18").DEFAULT.url.rpartition("/")[2]
    cached.parent.mkdir(parents=True)
    torch.save(get_model("resnet18").state_dict(), cached)
    assert len(COMMANDS) == 8
    before = ["train", "folder", "data.root=my/images", "model=resnet8", "--out", "runs/before"]
    for words in (before, *(words for words in COMMANDS if not any("timm:" in word for word in words))):
        place = words.index("--out") if "--out" in words else None
        if place is None:
            assert pskd(capfd, *words)[0] == 0
            continue
        tiny = [] if "finetune" in words else TINY
        code, out, err = pskd(capfd, *words[:place], *SMALL, *tiny, *words[place:])
        assert code == 0, f"{words}: {err}"
        assert "images of 16x16, 2 classes" in out
    log = Path("runs/fine/log.txt").read_text()
    assert "resnet18, 11.2M parameters, weights DEFAULT with a new head for 2 classes" in log
    assert "enlarged from" not in log


def test_small_images_that_are_enlarged_are_spoken_of(birds: Path) -> None:
    task = Classification(resolve(read_recipe("folder"), ["data.root=my/images"]))
    assert task.about().endswith("224x224, 2 classes (enlarged from about 20; data.image_size=20 trains faster)")
