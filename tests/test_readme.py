"""The README's code blocks are run as they stand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from pages import ROOT, commands, texts
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pskd
from pskd.workbench.cli import main


def test_it_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 120


def test_the_diff_is_a_training_loop() -> None:
    (diff,) = texts("README.md", "diff")
    assert sum(line.startswith("+") for line in diff.splitlines()) == 4
    kept = [line[2:] for line in diff.splitlines() if not line.startswith("-")]
    train = TensorDataset(torch.randn(8, 5), torch.randint(0, 100, (8,)))
    model = nn.Linear(5, 100)
    names = {"pskd": pskd, "F": F, "train": train, "model": model, "loader": DataLoader(pskd.Indexed(train), 8)}
    exec("\n".join([*kept, "        loss.backward()"]), names)
    assert names["distill"].alpha_t == 0.8
    assert torch.isfinite(model.weight.grad).all()


def test_commands_for_own_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """With a smaller model and picture size, so that it takes seconds."""
    from PIL import Image

    monkeypatch.chdir(tmp_path)
    for split, count in (("train", 4), ("test", 2)):
        for shade, name in enumerate(("cat", "dog")):
            folder = Path("my/images", split, name)
            folder.mkdir(parents=True)
            for number in range(count):
                Image.new("RGB", (40 + number, 50), (200 * shade, 50, 60)).save(folder / f"{number}.png")
    Image.new("RGB", (70, 30), (200, 50, 60)).save("photo.jpg")
    found = [words for words in commands("README.md") if words[0] != "study"]  # study/test_shipped.py runs those
    assert len(found) == 4
    small = ["model=resnet8", "model.width=4", "data.image_size=16", "epochs=2", "batch_size=4", "data.workers=0"]
    for words in found:
        place = words.index("model=torchvision:resnet18") if "model=torchvision:resnet18" in words else None
        changed = words if place is None else [*words[:place], *small, *words[place + 1 :]]
        monkeypatch.setattr("sys.argv", ["pskd", *changed])
        with pytest.raises(SystemExit) as stop:
            main()
        assert stop.value.code == 0, words
    assert '"dog"' in capfd.readouterr().out
