"""The command line as a person uses it, also with wrong words."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from shutil import copytree

import pytest
from helpers import SMALL, pskd
from processes import exit_code, in_child

from pskd.workbench.cli import main
from pskd.workbench.runs.folder import RunFolder


def test_help_loads_no_torch() -> None:
    code = "import sys; sys.argv=['', '--help']\nfrom pskd.__main__ import main\ntry: main()\nexcept SystemExit: pass\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}assert 'torch' not in sys.modules"], capture_output=True, text=True, check=True
    )
    assert "train" in done.stdout


COMMANDS = ["", "train", "evaluate", "predict", "calibrate", "ensemble", "export", "report", "tune"]
COMMANDS += ["recipes", "recipes copy", "study", "study run"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = pskd(capfd, *command.split(), "--help")
    assert code == 0
    assert "Usage: " in out
    assert ("Example" in out) == (command not in ("", "recipes", "study"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train"], "which recipe?"),
        (["train", "digit"], "'digit' is not a recipe; did you mean digits?"),
        (["train", "digits", "cifar10"], "'cifar10' is a second recipe"),
        (["train", "digits", "optim.lrr=1"], "did you mean optim.lr?"),
        (["train", "nothing.yaml"], "nothing.yaml: there is no such file"),
        (["train", "--resume"], "which run? name its folder: pskd train --resume --out FOLDER"),
        (["train", "--resume", "--out", "nowhere"], "has no config.yaml to resume from"),
        (["train", "digits", "model=resnet9"], "resnet9"),
        (["train", "digits", "model.widht=3"], "widht"),
        (["train", "digits", "data=digit"], "digits"),
        (["train", "folder"], "data.root"),
        (["train", "folder", "data.root=nowhere"], "nowhere"),
        (["train", "digits", "--out", "file/below"], "choose another --out"),
        (["train", "cifar100/preact_resnet18", "data.root=nowhere"], "data.download=true"),
        (["evaluate", "nowhere"], "nowhere is not a run folder"),
        (["predict", "nowhere", "x.png"], "nowhere is not a run folder: it has no config.yaml"),
        (["recipes", "show", "digit"], "did you mean digits?"),
        (["study", "run", "studies/digit"], "'studies/digit' is not a study; did you mean studies/digits?"),
        (["study", "run", "studies/digits", "method=XY"], "it has CE, LS, CS-KD, TF-KD, PS-KD"),
        (["study", "status", "nowhere"], "nowhere is not a study's folder"),
        (["report", "nowhere"], "nowhere is not a run folder"),
        (["tune", "digits", "method.alpha=0.5"], "what to search?"),
        (["tune", "digits", "method.alpha=0:inf:1"], "method.alpha=0:inf:1 is one value, no range"),
        (["train", "digits", "train.accumulate=100000"], "train: accumulate=100000 parts of a batch_size of 64: take"),
        (["train", "digits", "model.foo.bar=3"], "model.foo={'bar': 3}: must be a number, a word"),
        (["tune", "digits", "method.alpha=0:1:0.5", "--by", "accuracy"], "not a metric; allowed are "),
        (["tune", "digits", "method.alpha=0:1"], "method.alpha"),
        (["tarin"], "tarin"),
        (["train", "--oot", "x"], "--oot"),
        (["export", "nowhere"], "Missing option '--format' (see pskd export --help)"),
    ],
)
def test_an_error_ends_in_one_line(
    words: list[str], message: str, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    code, _, err = pskd(capfd, *words)
    assert code == 2
    assert message in err
    assert err.startswith("pskd: ")
    assert err.count("\n") == 1


def test_a_run_from_start_to_prediction(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = pskd(capfd, "train", "digits", *SMALL, "epochs=1")
    assert code == 0
    assert "epoch 1/1" in out
    assert "run folder: runs/digits-ps_kd-0" in out
    run = "runs/digits-ps_kd-0"
    assert pskd(capfd, "train", "digits", *SMALL, "epochs=1")[2].endswith("or choose another --out\n")
    assert pskd(capfd, "train", "digits", *SMALL, "epochs=1", "--resume")[1].endswith(
        "run folder: runs/digits-ps_kd-0\n"
    )
    code, out, _ = pskd(capfd, "evaluate", run, "--json")
    assert json.loads(out)["top1_error"] == json.loads(Path(run, "result.json").read_text())["top1_error"]
    from PIL import Image

    Image.new("L", (8, 8)).save("zero.png")
    Path("broken.png").write_bytes(b"")
    code, out, err = pskd(capfd, "predict", run, "zero.png", "broken.png", "zero.png")
    assert code == 2
    assert out.count("zero.png") == 2
    assert "broken.png" in err
    code, out, _ = pskd(capfd, "predict", run, "zero.png", "--json", "--top", "3")
    assert code == 0
    assert len(json.loads(out)["classes"]) == 3


def test_a_study_from_start_to_page(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a real worker process."""
    monkeypatch.chdir(tmp_path)
    settings = "{data.per_class: 20, model.width: 4, epochs: 1}"
    Path("mine.yaml").write_text(f"about: mine\nrecipe: digits\nsettings: {settings}\naxes: {{seed: [0, 1]}}\n")
    code, out, err = pskd(capfd, "study", "run", "mine.yaml", "--workers", "1", "train.threads=1")
    assert code == 0, err
    assert "2 of 2 cells done" in out
    assert out.rstrip().endswith("report: runs/mine/report.html")
    code, out, _ = pskd(capfd, "study", "status", "runs/mine")
    assert out.count("done") == 3
    assert "cells, 0 to run" in pskd(capfd, "study", "run", "mine.yaml", "train.threads=1")[1]
    code, out, _ = pskd(capfd, "report", "runs/mine", "-o", "page.html", "--tables", "tables")
    assert code == 0
    assert "2" in Path("tables/comparison.csv").read_text()


def test_a_stopped_study_leaves_no_worker_behind(tmp_path: Path) -> None:
    file = tmp_path / "long.yaml"
    file.write_text("about: long\nrecipe: digits\nsettings: {epochs: 9999, model.width: 4}\naxes: {seed: [0]}\n")

    def study() -> None:
        sys.argv = ["pskd", "study", "run", str(file), "--out", str(tmp_path / "study"), "--workers", "1"]
        main()

    owner, log = in_child(study), tmp_path / "study" / "worker-0.log"
    while not (log.exists() and "epoch 1/" in log.read_text()):
        time.sleep(0.05)
    os.kill(owner, signal.SIGTERM)
    assert exit_code(owner) == 130
    (run,) = (tmp_path / "study" / "runs").iterdir()
    folder = RunFolder(run)
    folder.claim(None, resume=True)  # nobody holds it any more
    folder.release()
    assert list(folder.checkpoints.iterdir())


def test_every_setting_is_listed(capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = pskd(capfd, "train", "--settings")
    assert code == 0
    for line in ("optim.lr=0.1", "method.alpha=0.8", "method.memory=bank  (bank, snapshot)", "augment.mix=none"):
        assert f"  {line}" in out


def test_what_the_laptop_scale_changes_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = pskd(capfd, "train", "cifar10", "scale=laptop", "data.root=nowhere")
    assert code == 2
    assert out.startswith("scale=laptop changes\n  scale: full, laptop\n")
    assert "  train.epochs: 200, 30\n" in out


def test_recipes(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "digits" in pskd(capfd, "recipes", "ls")[1]
    assert pskd(capfd, "recipes", "show", "digits")[1].startswith("# pskd train digits\n")
    assert pskd(capfd, "recipes", "copy", "digits", "mine.yaml")[0] == 0
    assert "exists already" in pskd(capfd, "recipes", "copy", "digits", "mine.yaml")[2]
    assert pskd(capfd, "train", "mine.yaml", *SMALL, "epochs=1", "--out", "mine")[0] == 0


@pytest.mark.parametrize("missing", ["typer", "accelerate"])
def test_without_the_workbench_the_extra_is_named(missing: str, tmp_path: Path) -> None:
    """As after `pip install pskd`, which brings torch and numpy only."""
    code = f"import sys; sys.modules[{missing!r}] = None; sys.argv = ['pskd', 'train', 'digits', '--out', 'x']\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}from pskd.__main__ import main; main()"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 2
    assert f"needs {missing}: pip install -e '.[workbench]'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_no_control_characters_are_printed(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    from PIL import Image

    names, red = ("cat\x1b[31m", "dog\u202e\x9b2J"), "\x1b]0;owned\x07"
    for split in ("train", "test"):
        for name in names:
            Path("images", split, name).mkdir(parents=True)
            Image.new("RGB", (8, 8)).save(Path("images", split, name, "1.png"))
    settings = ["data.root=images", "data.image_size=8", "model=resnet8", "model.width=4", "epochs=1"]
    code, out, err = pskd(capfd, "train", "folder", *settings, "--out", f"run{red}")
    assert code == 0, err
    output = [out, err]
    image = f"images/train/{names[0]}/1.png"
    for words in (
        ["predict", f"run{red}", image, f"missing{red}.png"],
        ["predict", f"run{red}", image, "--json"],
        ["evaluate", f"nowhere{red}"],
        ["train", f"nothing{red}"],
        ["train", "folder", f"data.root=nowhere{red}"],
        ["train", "digits", f"optim.{red}=1"],
        ["ensemble", f"run{red}", f"run{red}"],
        [f"--{red}"],
    ):
        _, out, err = pskd(capfd, *words)
        output += [out, err]
    assert "cat\\x1b[31m" in output[2]
    assert not [text for text in output if any(sign in text for sign in ("\x1b", "\x07", "\x9b", "\u202e"))]


@pytest.fixture
def finished(tmp_path: Path, undisturbed: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished run in the current folder."""
    monkeypatch.chdir(tmp_path)
    copytree(undisturbed(), "run")
    return Path("run")


def test_a_full_disk_under_a_report_is_not_a_matter_of_resuming(
    capfd: pytest.CaptureFixture[str], finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "report.html")

    monkeypatch.setattr("pskd.workbench.report.page.write_named", full)
    code, _, err = pskd(capfd, "report", "run")
    assert (code, err) == (2, "pskd: report report.html: the disk is full; free some space, then run it again\n")


def test_weights_that_were_lost_are_not_a_matter_of_resuming(capfd: pytest.CaptureFixture[str], finished: Path) -> None:
    (finished / "model.safetensors").unlink()
    code, _, err = pskd(capfd, "predict", "run", "x.png")
    assert (code, err.count("\n")) == (2, 1)
    assert "run has lost its model.safetensors: copy it back, or train it again with another --out" in err


@pytest.mark.parametrize("change", ["renamed", "missing", "additional"])
def test_a_model_is_not_evaluated_on_other_classes(
    change: str, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    from PIL import Image

    classes = {"renamed": ("cat", "dog", "fox"), "missing": ("cat", "dog"), "additional": ("ape", "cat", "dog", "eel")}
    for root, names in (("here", ("cat", "dog", "eel")), ("there", classes[change])):
        for place in (Path(root, split, name) for split in ("train", "test") for name in names):
            place.mkdir(parents=True)
            Image.new("RGB", (8, 8)).save(place / "1.png")
    settings = ["data.root=here", "data.image_size=8", "model=resnet8", "model.width=4", "epochs=1"]
    assert pskd(capfd, "train", "folder", *settings, "--out", "run")[0] == 0
    assert pskd(capfd, "evaluate", "run")[0] == 0
    code, _, err = pskd(capfd, "evaluate", "run", "--root", "there")
    assert (code, "a model can only be evaluated on the classes it was trained on" in err) == (2, True)
