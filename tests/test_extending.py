"""docs/extending.md is true: its files are written and its commands run, in an empty folder."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest
import torch
from helpers import metrics_of, pskd

PAGE = Path(__file__).parents[1] / "docs" / "extending.md"
BLOCKS = re.findall(r"```(python|bash|yaml)\n(.*?)```", PAGE.read_text(), re.DOTALL)


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
    import subprocess

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
    for words in first:
        subprocess.run([sys.executable, "-m", "pskd", *words.split()], check=True, capture_output=True, text=True)
    (empty / "method" / "result.json").unlink()
    for marker in empty.glob("imported-*"):
        marker.unlink()
    program = "import sys; from pskd.cli import main; sys.argv = ['pskd', *sys.argv[1].split()]; main()"
    for words in refused:
        done = subprocess.run([sys.executable, "-c", program, words], capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (2, ""), words
        assert re.fullmatch(r"pskd: .*names code.*--allow-code.*\n", done.stderr), done.stderr
    report = subprocess.run(
        [sys.executable, "-m", "pskd", "report", "net", "task", "-o", "p.html"], capture_output=True, text=True
    )
    assert report.returncode == 0, report.stderr
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
        ("task=half_thing:load", "task=half_thing:load is not a subclass of pskd.tasks.base.Task"),
    ):
        code, out, err = pskd(capfd, "train", "digits", word, "epochs=1", "--out", "run")
        assert (code, out) == (2, ""), word
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
    assert json.loads(json.dumps({name: str(s.annotation) for name, s in MyLoss.settings().items()})).keys() == {
        "strength"
    }
