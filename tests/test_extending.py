"""docs/extending.md is true: its files are written and its commands run, in an empty folder."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest
import torch
from helpers import fresh, metrics_of, pskd
from pages import blocks

from pskd.settings import settings_of

BLOCKS = blocks("docs/extending.md", "python", "bash", "yaml")


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder, whose modules are forgotten afterwards."""
    from PIL import Image

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Image.new("L", (8, 8), 128).save(tmp_path / "digit.png")
    return tmp_path


def write_files(folder: Path) -> None:
    for kind, text in BLOCKS:
        if kind in ("python", "yaml"):
            name = text.splitlines()[0].removeprefix("# ")
            (folder / name).write_text(text)


def test_every_block_works(empty: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_files(empty)
    commands = [line for kind, text in BLOCKS if kind == "bash" for line in text.splitlines()]
    assert len(commands) == 9
    for command in commands:
        _, *words = shlex.split(command)
        code, out, err = pskd(capfd, *words)
        assert (code, err) == (0, ""), f"{command}: {err}"
        assert out
    parts = metrics_of(empty / "runs/own-method")[0]["loss_parts"]
    assert set(parts) == {"cross_entropy", "certainty"}
    assert parts["certainty"] < 0
    page = (empty / "page.html").read_text()
    for shown in ("my_models:tiny_net", "my_data:load", "my_methods:MyLoss", "my_task:Largest", "missed"):
        assert shown in page


def test_a_folder_that_names_code_is_not_believed(empty: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """In another program than the one that trained: there the names are not known yet."""
    write_files(empty)
    for module in ("my_models", "my_data", "my_methods", "my_task"):
        text = (empty / f"{module}.py").read_text()
        (empty / f"{module}.py").write_text(f"open('imported-{module}', 'w').close()\n{text}")
    (empty / "digit.png").rename(empty / "photo.png")
    quick = "epochs=1 data.per_class=10 model.width=4"
    first = [
        f"train digits model=my_models:tiny_net {quick} --out net",
        f"train digits method=my_methods:MyLoss {quick} --out method",
        "train largest.yaml epochs=1 --out task",
    ]
    refused = [
        "predict net photo.png",
        "evaluate net",
        "train --resume --out method",
        "predict task 0.1,0.9,0.2,0.3",
        "train digits method=tf_kd method.teacher=net --out student",
        "train detection/digits model.backbone=net --out detector",
    ]
    for code, _, err in fresh([words.split() for words in first]):
        assert code == 0, err
    (empty / "method" / "result.json").unlink()
    for marker in empty.glob("imported-*"):
        marker.unlink()
    *answers, report = fresh([*(words.split() for words in refused), ["report", "net", "task", "-o", "p.html"]])
    for words, (code, out, err) in zip(refused, answers, strict=True):
        said = [line for line in out.splitlines() if not line.endswith(" ...")]  # but for what is said if it takes long
        assert (code, said) == (2, []), words
        assert re.fullmatch(r"pskd: .*names code.*--allow-code.*\n", err), err
    assert report[0] == 0, report[2]
    assert list(empty.glob("imported-*")) == []


def test_names_that_cannot_be_imported_are_explained(empty: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (empty / "broken_thing.py").write_text("def f():\n  return\nraise RuntimeError('no such\\nluck')\n")
    (empty / "half_thing.py").write_text("tiny_net = 3\ndef load(root=None):\n    return 7\n")
    for word, message in (
        (
            "model=nowhere_at_all:net",
            "model=nowhere_at_all:net cannot be imported: ModuleNotFoundError: No module named",
        ),
        ("model=broken_thing:f", r"model=broken_thing:f cannot be imported: RuntimeError: no such luck \(.*line 3\)"),
        ("model=half_thing:tiny_nett", "half_thing has no tiny_nett; did you mean tiny_net?"),
        ("model=half_thing:tiny_net", "model=half_thing:tiny_net is not a callable"),
        ("data=half_thing:load", "data=half_thing:load must return an ImageData or a dictionary .* got int"),
        ("method=half_thing:load", "method=half_thing:load is not a subclass of pskd.Method"),
        ("task=half_thing:load", "task=half_thing:load is not a subclass of pskd.workbench.tasks.base.Task"),
    ):
        code, _, err = pskd(capfd, "train", "digits", word, "epochs=1", "--out", "run")
        assert code == 2, word
        assert re.search(message.replace("?", r"\?"), err), err
        assert err.count("\n") == 1
        assert not (empty / "run").exists()


def test_a_stranger_s_method_in_a_loop_of_ones_own(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(empty)
    monkeypatch.syspath_prepend(str(empty))
    from my_methods import MyLoss

    logits = torch.randn(5, 3, requires_grad=True)
    MyLoss(0.3)(logits, torch.tensor([0, 1, 2, 0, 1]), index=torch.arange(5)).backward()
    assert logits.grad is not None
    assert json.loads(json.dumps({name: str(s.annotation) for name, s in settings_of(MyLoss).items()})).keys() == {
        "strength"
    }


def test_an_installed_package_gives_short_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By entry points; what is installed was installed by the user, so no word of trust is needed."""
    (tmp_path / "short_names.py").write_text(
        "import pskd\nfrom torch import nn\n"
        "class Quiet(pskd.Hard):\n    name = 'quiet'\n"
        "def flat_net(num_classes, in_channels):\n"
        "    return nn.Sequential(nn.Flatten(), nn.LazyLinear(num_classes))\n"
    )
    about = tmp_path / "short_names-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: short_names\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[pskd.methods]\nquiet = short_names:Quiet\n[pskd.models]\nflat_net = short_names:flat_net\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    from pskd.workbench import registry
    from pskd.workbench.config import resolve, validated

    assert "quiet" in registry.methods.names()
    config = resolve({}, ["method=quiet", "model=flat_net"])
    assert validated(config.model_dump(mode="json")) == config
    assert registry.models.find("flat_net")(3, 1) is not None


def test_a_study_and_a_search_of_code_of_ones_own(empty: Path) -> None:
    """Workers are other processes: they are told that this code may be imported."""
    write_files(empty)
    (empty / "own.yaml").write_text(
        "about: my loss against the labels alone\nrecipe: digits\n"
        "settings: {epochs: 1, data.per_class: 10, model: 'my_models:tiny_net', model.width: 4}\n"
        "axes:\n  method:\n    CE: {method: hard}\n    mine: {method: 'my_methods:MyLoss', method.strength: 0.3}\n"
        "  seed: [0]\n"
    )
    words = ["study", "run", "own.yaml", "--out", "study", "--workers", "1"]
    (code, out, err), status = fresh([words, ["study", "status", "study"]])
    assert code == 0, out + err
    assert "mine" in (empty / "study" / "report.html").read_text()
    assert status[0] == 0, status[2]
    assert "2 of 2 cells done" in status[1]
