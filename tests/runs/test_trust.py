"""A run folder from a stranger: it is not obeyed where it would load, fetch or run something, or write elsewhere."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import yaml
from helpers import SMALL, pskd, small
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from fuzzing.case import TINY_SCENES
from pskd.errors import PskdError
from pskd.workbench.models import create
from pskd.workbench.runs.folder import RunFolder
from pskd.workbench.runs.trust import plain_options
from pskd.workbench.train import build
from pskd.workbench.train.loop import train

CODE = "evil:thing"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "run"
    train(small("epochs=1", "train.save_every=1 epoch"), out)
    return out


@pytest.fixture
def run(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy, in a folder with a module that leaves a mark when it is imported."""
    monkeypatch.chdir(tmp_path)
    Path("evil.py").write_text("open('pwned', 'w')\n")
    Image.new("L", (8, 8)).save("x.png")
    return Path(shutil.copytree(finished, "run"))


def edited(run: Path, **changes: Any) -> None:
    """Change the stored configuration: ``data={"download": True}``."""
    file = run / "config.yaml"
    tree = yaml.safe_load(file.read_text())
    for section, change in changes.items():
        tree[section] = {**tree[section], **change} if isinstance(change, dict) else change
    file.write_text(yaml.safe_dump(tree, sort_keys=False) + "# end of settings\n")


def relabelled(run: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change what stands beside the weights."""
    file = run / "model.safetensors"
    with safe_open(str(file), framework="pt") as weights:
        about = json.loads(weights.metadata()["pskd"])
    change(about)
    save_file(load_file(file), file, {"pskd": json.dumps(about)})


HOSTILE: list[dict[str, Any]] = [
    {"checkpoint_path": "R/evil.pth"},
    {"checkpoint_path": "evil"},
    {"pretrained_cfg": {"file": "evil.pth"}},
    {"pretrained_cfg_overlay": {"file": "evil.pth"}},
    {"pretrained_cfg": "evil"},
    {"kwargs": {"checkpoint_path": "evil"}},
    {"attn_implementation": "org/repo"},
    {"attn_implementation": "flash_attention_2"},
    {"_attn_implementation": "org/repo"},
    {"experts_implementation": "evil"},
    {"auto_map": {"AutoModel": "evil.thing"}},
    {"trust_remote_code": True},
    {"use_kernels": True},
    {"cache_dir": "elsewhere"},
    {"hf_hub_id": "org"},
    {"width": "../evil"},
    {"width": "evil.pth"},
    {"width": [[1], [2]]},
    {"width": ["a/b"]},
    {"Checkpoint_Path": "evil"},
    {"a.b": 1},
    {"": 1},
]


@pytest.mark.parametrize("options", HOSTILE, ids=str)
def test_options_that_load_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(PskdError, match="a run folder may"):
        plain_options(options)


def test_options_of_honest_models_stay() -> None:
    honest = {
        "width": 4,
        "blocks": [2, 2],
        "act_layer": "gelu",
        "encoder_layers": 2,
        "class_token": False,
        "kernel_size": [3, 3],
        "drop_path_rate": 0.1,
        "init_weights": True,
        "use_cache": False,
        "attn_implementation": "eager",
        "checkpoint_path": None,
    }
    assert plain_options(honest | {"weights": "DEFAULT", "pretrained": True}) == honest


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What a stand-in for timm was asked to build."""
    calls: list[dict[str, Any]] = []
    timm: Any = ModuleType("timm")

    def build(name: str, num_classes: int, in_chans: int, **options: Any) -> torch.nn.Module:
        calls.append(options)
        return create("resnet8", num_classes, in_chans, width=options.get("width", 4))

    timm.create_model, timm.list_models = build, lambda: ["resnet18"]
    monkeypatch.setitem(sys.modules, "timm", timm)
    return calls


@pytest.mark.parametrize("options", [{"checkpoint_path": "R/evil.pth"}, {"pretrained_cfg": {"file": "evil.pth"}}])
def test_a_library_is_never_asked_to_load_a_file(
    options: dict[str, Any], run: Path, asked: list[dict[str, Any]], capfd: pytest.CaptureFixture[str]
) -> None:
    evil = {"name": "timm:resnet18", **options}
    relabelled(run, lambda about: about.update(model=evil))
    for words in (["predict", "run", "x.png"], ["evaluate", "run"]):
        code, _, said = pskd(capfd, *words)
        assert (code, "a run folder may" in said, said.count("\n")) == (2, True, 1)
    (run / "result.json").unlink()
    if "checkpoint_path" in options:  # settings have no nested options
        edited(run, model=evil)
        code, _, said = pskd(capfd, "train", "--resume", "--out", "run")
        assert (code, "model.checkpoint_path may load files or code" in said) == (2, True)
    assert asked == []


def test_weights_to_begin_with_are_fetched_on_a_users_own_word(
    run: Path, asked: list[dict[str, Any]], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = ("model.name=timm:resnet18", "model.pretrained=true", "epochs=1", "train.save_every=1 epoch")
    train(small(*settings), tmp_path / "own")
    assert asked == [{"width": 4, "pretrained": True}]
    assert pskd(capfd, "predict", "own", "x.png")[0] == 0
    assert asked[1:] == [{"width": 4}]
    Path("own/result.json").unlink()
    assert pskd(capfd, "train", "--resume", "--out", "own")[0] == 0  # it goes on with its own weights
    assert asked[2:] == [{"width": 4}]
    Path("own/result.json").unlink()
    shutil.rmtree("own/checkpoints")
    code, _, said = pskd(capfd, "train", "--resume", "--out", "own")
    assert (code, "say it in your command, model.pretrained=..." in said) == (2, True)
    assert pskd(capfd, "train", "--resume", "--out", "own", "model.pretrained=true")[0] == 0
    assert asked[3:] == [{"width": 4, "pretrained": True}]


@pytest.mark.parametrize("where", ["task", "model", "data", "method", "metadata", "metadata's task"])
def test_code_that_a_folder_names_is_not_imported(where: str, run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    if where.startswith("metadata"):
        change = {"task": CODE} if "task" in where else {"model": {"name": CODE}}
        relabelled(run, lambda about: about.update(change))
    else:
        edited(run, **{where: CODE if where == "task" else {"name": CODE}})
    unfinished = Path(shutil.copytree(run, "unfinished"))
    (unfinished / "result.json").unlink()
    commands = [
        ["evaluate", "run"],
        ["predict", "run", "x.png"],
        ["train", "--resume", "--out", "unfinished"],
        ["train", "--resume", "--out", "unfinished", "train.threads=1"],
        ["report", "run"],
        ["ensemble", "run", "run"],
        ["train", "digits", *SMALL, "epochs=1", "method=tf_kd", "method.teacher=run", "--out", "student"],
        ["train", "detection/digits", *TINY_SCENES, "model.backbone=run", "--out", "detector"],
    ]
    refused = 0
    for words in commands if where != "method" else commands[:-1]:
        code, _, said = pskd(capfd, *words)
        assert code in (0, 2), said
        assert "Traceback" not in said
        refused += code == 2
    assert refused
    assert not Path("pwned").exists()


def test_code_that_a_studys_folder_names_is_not_imported(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    study = {"about": "", "recipe": "digits", "axes": {"seed": [0]}}
    for settings in ({"method.name": CODE}, {"model.name": CODE}, {"data.name": CODE}, {"task": CODE}):
        content = {"name": "x", "identity": "1", "words": [], "study": {**study, "settings": settings}}
        Path("study/runs").mkdir(parents=True, exist_ok=True)
        Path("study/study.yaml").write_text(yaml.safe_dump(content))
        said = pskd(capfd, "study", "work", "study")[2]
        assert "Traceback" not in said
        assert not Path("pwned").exists()
        shutil.rmtree("study")


def test_a_studys_folder_has_no_file_loaded(
    run: Path, asked: list[dict[str, Any]], capfd: pytest.CaptureFixture[str]
) -> None:
    settings = {"model.name": "timm:resnet18", "model.checkpoint_path": "evil", "epochs": 1}
    study = {"about": "", "recipe": "digits", "axes": {"seed": [0]}, "settings": settings}
    Path("study/runs").mkdir(parents=True)
    content = {"name": "x", "identity": "1", "words": [], "study": study}
    Path("study/study.yaml").write_text(yaml.safe_dump(content))
    pskd(capfd, "study", "work", "study")
    assert asked == []


def test_nothing_is_downloaded_on_a_folders_word(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edited(run, data={"name": "cifar10", "root": "nowhere", "download": True})
    assert not RunFolder(run).config(allow_code=True).data.download  # type: ignore[attr-defined]


def test_a_bank_is_not_written_to_a_place_that_only_the_folder_names(
    run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (run / "result.json").unlink()
    edited(run, method={"path": "rows"})
    code, out, _ = pskd(capfd, "train", "--resume", "--out", "run")
    assert code == 0
    assert "method.path=rows is not written on the folder's word, rows stay in RAM" in out
    assert not Path("rows").exists()
    (run / "result.json").unlink()
    code, out, _ = pskd(capfd, "train", "--resume", "--out", "run", "method.path=rows")
    assert (code, "rows stay in RAM" in out, Path("rows").exists()) == (0, False, True)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Whom a training tells of itself, trackers that are not installed here among them."""
    calls: list[str] = []
    real = build.Accelerator

    class Telling(real):  # type: ignore[misc, valid-type]
        def __init__(self, log_with: Any = None, **others: Any) -> None:
            calls.extend(log_with or ())
            super().__init__(log_with=[each for each in log_with or () if each == "tensorboard"], **others)

    monkeypatch.setattr(build, "Accelerator", Telling)
    monkeypatch.setattr(build, "find_spec", lambda name: name)
    return calls


def test_nothing_is_sent_on_a_folders_word(run: Path, told: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    (run / "result.json").unlink()
    edited(run, train={"trackers": ["wandb", "tensorboard", "mlflow"]})
    start = Path(shutil.copytree(run, "again/run"))
    code, out, _ = pskd(capfd, "train", "--resume", "--out", "run")
    assert (code, told) == (0, ["tensorboard"])  # which writes into the folder itself
    assert "nothing is sent to wandb and mlflow on the folder's word: add train.trackers=[wandb,tensor" in out
    code, out, _ = pskd(capfd, "train", "--resume", "--out", str(start), "train.trackers=[mlflow]")
    assert (code, told[1:], "folder's word" in out) == (0, ["mlflow"], False)


def test_a_studys_folder_sends_nothing(told: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    settings = {word.partition("=")[0]: yaml.safe_load(word.partition("=")[2]) for word in SMALL}
    settings |= {"epochs": 1, "train.trackers": ["wandb"], "method.path": str(tmp_path / "rows")}
    study = {"about": "", "recipe": "digits", "axes": {"seed": [0]}, "settings": settings}
    folder = tmp_path / "study"
    (folder / "runs").mkdir(parents=True)
    content = {"name": "x", "identity": "1", "words": [], "study": study}
    (folder / "study.yaml").write_text(yaml.safe_dump(content))
    code, out, _ = pskd(capfd, "study", "work", str(folder))
    assert (code, told, (tmp_path / "rows").exists()) == (0, [], False)
    assert "nothing is sent to wandb on the folder's word" in out
    assert len(list(folder.glob("runs/*/result.json"))) == 1


def test_a_file_that_is_no_bank_stays(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    Path("thesis.txt").write_text("years of work")
    code, _, said = pskd(capfd, "train", "digits", *SMALL, "method.path=thesis.txt", "--out", "other")
    assert (code, "holds something else than a bank" in said) == (2, True)
    assert Path("thesis.txt").read_text() == "years of work"
    assert not Path("other").exists()
