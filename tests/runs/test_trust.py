"""A run folder from a stranger cannot make us load, download or run something, or write elsewhere."""

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


def edit(run: Path, **changes: Any) -> None:
    """Change the stored configuration: ``data={"download": True}``."""
    file = run / "config.yaml"
    tree = yaml.safe_load(file.read_text())
    for section, change in changes.items():
        tree[section] = {**tree[section], **change} if isinstance(change, dict) else change
    file.write_text(yaml.safe_dump(tree, sort_keys=False) + "# end of settings\n")


def edit_metadata(run: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change what stands beside the weights."""
    file = run / "model.safetensors"
    with safe_open(str(file), framework="pt") as weights:
        about = json.loads(weights.metadata()["pskd"])
    change(about)
    save_file(load_file(file), file, {"pskd": json.dumps(about)})


def study_folder(settings: dict[str, Any]) -> str:
    """A folder as `pskd study run` writes it, with one cell."""
    study = {"about": "", "recipe": "digits", "axes": {"seed": [0]}, "settings": settings}
    Path("study/runs").mkdir(parents=True, exist_ok=True)
    Path("study/study.yaml").write_text(yaml.safe_dump({"name": "x", "identity": "1", "words": [], "study": study}))
    return "study"


EVIL_FILE = {"file": "evil.pth"}
HOSTILE: list[dict[str, Any]] = [
    *({name: "evil"} for name in ("checkpoint_path", "Checkpoint_Path", "pretrained_cfg", "experts_implementation")),
    *({name: "org/repo"} for name in ("attn_implementation", "_attn_implementation")),
    *({name: True} for name in ("trust_remote_code", "use_kernels")),
    *({name: EVIL_FILE} for name in ("pretrained_cfg", "pretrained_cfg_overlay")),
    *({"width": value} for value in ("../evil", "evil.pth", [[1], [2]], ["a/b"])),
    *({"checkpoint_path": "R/evil.pth"}, {"kwargs": {"checkpoint_path": "evil"}}, {"cache_dir": "elsewhere"}),
    *({"attn_implementation": "flash_attention_2"}, {"auto_map": {"AutoModel": "evil.thing"}}, {"hf_hub_id": "org"}),
    *({"a.b": 1}, {"": 1}),
]


@pytest.mark.parametrize("options", HOSTILE, ids=str)
def test_options_that_load_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(PskdError, match="a run folder may"):
        plain_options(options)


def test_options_of_honest_models_stay() -> None:
    honest: dict[str, Any] = {"width": 4, "blocks": [2, 2], "act_layer": "gelu", "kernel_size": [3, 3]}
    honest |= {"encoder_layers": 2, "class_token": False, "drop_path_rate": 0.1, "init_weights": True}
    honest |= {"use_cache": False, "attn_implementation": "eager", "checkpoint_path": None}
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


@pytest.mark.parametrize("options", [{"checkpoint_path": "R/evil.pth"}, {"pretrained_cfg": EVIL_FILE}])
def test_a_library_is_never_asked_to_load_a_file(
    options: dict[str, Any], run: Path, asked: list[dict[str, Any]], capfd: pytest.CaptureFixture[str]
) -> None:
    evil = {"name": "timm:resnet18", **options}
    edit_metadata(run, lambda about: about.update(model=evil))
    for words in (["predict", "run", "x.png"], ["evaluate", "run"]):
        code, _, message = pskd(capfd, *words)
        assert (code, "a run folder may" in message, message.count("\n")) == (2, True, 1)
    (run / "result.json").unlink()
    if "checkpoint_path" in options:  # settings have no nested options
        edit(run, model=evil)
        code, _, message = pskd(capfd, "train", "--resume", "--out", "run")
        assert (code, "model.checkpoint_path may load files or code" in message) == (2, True)
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
    code, _, message = pskd(capfd, "train", "--resume", "--out", "own")
    assert (code, "set it in your command, model.pretrained=..." in message) == (2, True)
    assert pskd(capfd, "train", "--resume", "--out", "own", "model.pretrained=true")[0] == 0
    assert asked[3:] == [{"width": 4, "pretrained": True}]


@pytest.mark.parametrize("where", ["task", "model", "data", "method", "metadata", "metadata's task"])
def test_code_that_a_folder_names_is_not_imported(where: str, run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    if where.startswith("metadata"):
        change = {"task": CODE} if "task" in where else {"model": {"name": CODE}}
        edit_metadata(run, lambda about: about.update(change))
    else:
        edit(run, **{where: CODE if where == "task" else {"name": CODE}})
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
        code, _, message = pskd(capfd, *words)
        assert code in (0, 2), message
        assert "Traceback" not in message
        refused += code == 2
    assert refused
    assert not Path("pwned").exists()


@pytest.mark.parametrize("setting", ["method.name", "model.name", "data.name", "task"])
def test_code_that_a_studys_folder_names_is_not_imported(
    setting: str, run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert "Traceback" not in pskd(capfd, "study", "work", study_folder({setting: CODE}))[2]
    assert not Path("pwned").exists()


def test_a_studys_folder_has_no_file_loaded(
    run: Path, asked: list[dict[str, Any]], capfd: pytest.CaptureFixture[str]
) -> None:
    settings = {"model.name": "timm:resnet18", "model.checkpoint_path": "evil", "epochs": 1}
    pskd(capfd, "study", "work", study_folder(settings))
    assert asked == []


def test_nothing_is_downloaded_on_a_folders_word(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edit(run, data={"name": "cifar10", "root": "nowhere", "download": True})
    assert not RunFolder(run).config(allow_code=True).data.download  # type: ignore[attr-defined]


def test_a_bank_is_not_written_to_a_place_that_only_the_folder_names(
    run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (run / "result.json").unlink()
    edit(run, method={"path": "rows"})
    code, out, _ = pskd(capfd, "train", "--resume", "--out", "run")
    assert code == 0
    assert "method.path=rows comes from the folder, so records stay in RAM" in out
    assert not Path("rows").exists()
    (run / "result.json").unlink()
    code, out, _ = pskd(capfd, "train", "--resume", "--out", "run", "method.path=rows")
    assert (code, "records stay in RAM" in out, Path("rows").exists()) == (0, False, True)


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
    edit(run, train={"trackers": ["wandb", "tensorboard", "mlflow"]})
    start = Path(shutil.copytree(run, "again/run"))
    code, out, _ = pskd(capfd, "train", "--resume", "--out", "run")
    assert (code, told) == (0, ["tensorboard"])  # which writes into the folder itself
    assert "[wandb,tensorboard,mlflow] comes from the folder, so nothing is sent to wandb and mlflow" in out
    code, out, _ = pskd(capfd, "train", "--resume", "--out", str(start), "train.trackers=[mlflow]")
    assert (code, told[1:], "comes from the folder" in out) == (0, ["mlflow"], False)


def test_a_studys_folder_sends_nothing(run: Path, told: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    settings = {word.partition("=")[0]: yaml.safe_load(word.partition("=")[2]) for word in SMALL}
    settings |= {"epochs": 1, "train.trackers": ["wandb"], "method.path": "rows"}
    code, out, _ = pskd(capfd, "study", "work", study_folder(settings))
    assert (code, told, Path("rows").exists()) == (0, [], False)
    assert "so nothing is sent to wandb:" in out
    assert len(list(Path("study").glob("runs/*/result.json"))) == 1


def test_a_file_that_is_no_bank_stays(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    Path("thesis.txt").write_text("years of work")
    code, _, message = pskd(capfd, "train", "digits", *SMALL, "method.path=thesis.txt", "--out", "other")
    assert (code, "holds something else than a bank" in message) == (2, True)
    assert Path("thesis.txt").read_text() == "years of work"
    assert not Path("other").exists()
