"""A run folder in which something is a link, lost, cut off, unreadable or somebody else's."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from chaos import equal, tiny
from helpers import SMALL, metrics_of, pskd, small, unfinished
from processes import exit_code, in_child, obey_permissions

from pskd.errors import PskdError
from pskd.workbench.runs import checkpoint
from pskd.workbench.runs.files import checksum
from pskd.workbench.runs.folder import RunFolder
from pskd.workbench.train import build
from pskd.workbench.train.loop import train
from pskd.workbench.use import evaluate


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a best epoch, of whose second epoch a checkpoint in the middle is the last thing."""
    return unfinished(tmp_path_factory.mktemp("stopped") / "run", tiny("epochs=2", "data.val_fraction=0.2"))


@pytest.fixture
def run(stopped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped, tmp_path / "run"))


FILES = ["history.bin", "log.txt", "metrics.jsonl", ".lock", "config.yaml", "result.json", "model.safetensors"]
FILES += ["best.safetensors", "predictions.npz", ".model.safetensors.writing", ".config.yaml.1.writing"]


@pytest.mark.parametrize("name", FILES)
def test_a_link_is_not_followed(name: str, run: Path, tmp_path: Path) -> None:
    mine, place = tmp_path / "mine", run / name
    if place.exists():
        place.rename(mine)
    else:
        mine.write_bytes(b"x" * 100_000)
    before = mine.read_bytes()
    place.symlink_to(mine)
    with pytest.raises(PskdError, match=rf"{re.escape(name)} is a symbolic link|{re.escape(name)} is damaged"):
        train(None, run, resume=True)
    assert mine.read_bytes() == before


@pytest.mark.parametrize("name", ["checkpoints", "checkpoints/.writing-000000099", "drawn", "run"])
def test_a_link_to_a_folder_is_not_followed(name: str, run: Path, tmp_path: Path) -> None:
    mine, place = tmp_path / "mine", run / name
    if place.exists():
        place.rename(mine)
    else:
        mine.mkdir()
    (mine / "notes.txt").write_text("kept")
    before = sorted(mine.rglob("*"))
    place.symlink_to(mine)
    with pytest.raises(PskdError, match=f"{name} is a symbolic link"):
        train(None, run, resume=True)
    assert sorted(mine.rglob("*")) == before


def test_a_pipe_is_no_log(run: Path) -> None:
    (run / "log.txt").unlink()
    os.mkfifo(run / "log.txt")
    with pytest.raises(PskdError, match=r"log\.txt is neither a file nor a folder"):
        train(None, run, resume=True)


def test_a_link_that_appears_while_a_run_goes_on_is_not_followed(run: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("kept")
    folder = RunFolder(run)
    for file in (folder.metrics_file, folder.log_file):
        file.unlink()
        file.symlink_to(tmp_path / "mine")
    with pytest.raises(PskdError, match=r"metrics\.jsonl is a symbolic link"):
        folder.append_metrics({"epoch": 1})
    with pytest.raises(PskdError, match=r"log\.txt is a symbolic link"):
        folder.log("a line")
    assert (tmp_path / "mine").read_text() == "kept"


@pytest.mark.parametrize("damage", ["lost", "changed", "cut off", "endless"])
def test_the_best_weights_come_back_from_the_checkpoint(damage: str, run: Path, stopped: Path) -> None:
    best = run / "best.safetensors"
    if damage == "lost":
        best.unlink()
    elif damage == "endless":
        os.truncate(best, 10**12)  # takes no room, and hours to read
    else:
        best.write_bytes(best.read_bytes()[:-500] + (b"x" * 500 if damage == "changed" else b""))
    result = train(None, run, resume=True)
    assert best.read_bytes() == (stopped / "best.safetensors").read_bytes()
    assert evaluate(run, "test", best=True)["top1_error"] == result["best"]["test"]["top1_error"]


@pytest.mark.parametrize("damage", ["lost", "changed"])
def test_the_best_weights_are_lost_while_a_run_goes_on(damage: str, tmp_path: Path) -> None:
    config, out = small("epochs=2", "data.val_fraction=0.2", "train.save_every=1 epoch"), tmp_path / "run"

    def harm(record: dict[str, object]) -> None:
        if record["epoch"] == 2:
            best = out / "best.safetensors"
            best.unlink() if damage == "lost" else best.write_bytes(b"x")

    with pytest.raises(PskdError, match=r"best\.safetensors was lost or changed: .*--resume"):
        train(config, out, after_epoch=harm)
    train(config, out, resume=True)
    train(config, tmp_path / "undisturbed")
    assert equal(out, tmp_path / "undisturbed")


def harmless(run: Path) -> tuple[list[dict[str, object]], bytes]:
    return metrics_of(run), (run / "history.bin").read_bytes()


def test_all_checkpoints_are_damaged(run: Path) -> None:
    before = harmless(run)
    for file in (run / "checkpoints").glob("*/model.pt"):
        file.write_bytes(b"x")
    with pytest.raises(PskdError, match=r"is damaged \(model\.pt was changed\), and there is no other: .*--out"):
        train(None, run, resume=True)
    assert harmless(run) == before


def test_all_checkpoints_are_gone(run: Path) -> None:
    before = harmless(run)
    for folder in (run / "checkpoints").glob("0*"):
        shutil.rmtree(folder)
    with pytest.raises(PskdError, match=r"the checkpoints in .* are gone"):
        train(None, run, resume=True)
    assert harmless(run) == before
    shutil.rmtree(run / "checkpoints")  # the user's own word to begin anew
    assert train(None, run, resume=True)["epoch"] == 2


def test_checkpoints_that_cannot_be_read(run: Path, tmp_path: Path) -> None:
    said, before = tmp_path / "said", harmless(run)
    (run / "checkpoints").chmod(0o000)

    def work() -> None:
        obey_permissions()
        try:
            train(None, run, resume=True)
        except PskdError as error:
            said.write_text(str(error))

    assert exit_code(in_child(work)) == 0
    (run / "checkpoints").chmod(0o755)
    assert re.search(r"checkpoints.*ermission denied", said.read_text())
    assert harmless(run) == before


def cut(text: str, share: float) -> str:
    return text[: int(len(text) * share)]


CUTS: dict[str, Callable[[str], str]] = {
    "half": lambda text: cut(text, 0.5),
    "most": lambda text: cut(text, 0.9),
    "the last setting": lambda text: text[: text.rindex("\n", 0, text.index("# end"))],
    "a section": lambda text: re.sub(r"^optim:\n(?:[ -].*\n)+", "", text, flags=re.M),
}


@pytest.mark.parametrize("change", CUTS.values(), ids=CUTS)
def test_a_configuration_that_was_cut_off(change: Callable[[str], str], run: Path) -> None:
    file, before = run / "config.yaml", harmless(run)
    text = change(file.read_text())
    file.write_text(text[: text.rindex("\n") + 1])
    with pytest.raises(PskdError, match=r"config\.yaml.*cut off"):
        train(None, run, resume=True)
    assert harmless(run) == before


def test_a_configuration_of_an_earlier_release_can_be_read(run: Path) -> None:
    file = run / "config.yaml"
    old = [line for line in file.read_text().splitlines() if "clip_norm" not in line and not line.startswith("#")]
    file.write_text("\n".join(old) + "\n")
    assert RunFolder(run).config().train.clip_norm is None
    assert train(None, run, resume=True)["epoch"] == 2


@pytest.mark.parametrize(
    "edit", [("lr: 0.1", "lr: 0.2"), ("epochs: 2", "epochs: 3"), ("momentum: 0.9", "momentum: 0.5")]
)
def test_a_checkpoint_of_other_settings_is_refused(edit: tuple[str, str], run: Path) -> None:
    file, before = run / "config.yaml", harmless(run)
    text = file.read_text()
    assert edit[0] in text
    file.write_text(text.replace(*edit))
    with pytest.raises(PskdError, match=r"config\.yaml has other settings now"):
        train(None, run, resume=True)
    assert harmless(run) == before


def test_a_child_process_does_not_hold_the_folder(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.begin(run.claim(small(), resume=False))
    child = in_child(lambda: time.sleep(60))
    run.release()
    RunFolder(tmp_path).claim(small(), resume=True)
    os.kill(child, 9)
    os.waitpid(child, 0)


def test_a_folder_of_somebody_elses_is_not_taken(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("thesis").mkdir()
    Path("thesis/metrics.jsonl").write_text("mine")
    Path("file").write_text("mine")
    for out, message in (
        ("thesis", "no run folder and not empty (it holds metrics.jsonl)"),
        ("file", "this is a file, not a folder; choose another --out"),
        ("", "--out is empty"),
        (".", "no run folder and not empty"),
    ):
        for more in ([], ["--resume"]):
            code, _, said = pskd(capfd, "train", "digits", *SMALL, "--out", out, *more)
            assert (code, message in said, said.count("\n")) == (2, True, 1), said
    assert Path("thesis/metrics.jsonl").read_text() == Path("file").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "metrics.jsonl", "thesis"]


def test_an_empty_folder_of_the_users_own_stays(tmp_path: Path) -> None:
    with pytest.raises(PskdError, match="resnet9"):
        train(small("model=resnet9"), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["history.bin", "log.txt", "metrics.jsonl", "config.yaml", "best.safetensors"])
def test_a_file_that_has_another_name_elsewhere_is_not_written_there(name: str, run: Path, tmp_path: Path) -> None:
    os.link(run / name, tmp_path / "mine")
    before = (tmp_path / "mine").read_bytes()
    assert train(None, run, resume=True)["epoch"] == 2
    assert (tmp_path / "mine").read_bytes() == before
    assert (run / "metrics.jsonl").read_text().count("\n") == 2


PROGRESS: list[tuple[str, object]] = [
    *(("best", 3), ("epoch_seconds", ["x"]), ("seconds", None), ("stretches", [[1]]), ("skipped", "x"), ("world", 0)),
    *(("epoch", 2**70), ("step", -1), ("sources", None), ("best", {"epoch": "x", "val": {}})),
    *(("best", {"epoch": 1, "val": {}, "name": torch.ones(1)}), ("best", {"epoch": 1, "val": {"x": torch.ones(1)}})),
    ("best", {"epoch": 1, "val": {"by_class": {"a": [torch.ones(1)]}}}),
]


def edit_progress(run: Path, key: str, value: object) -> None:
    """Change where its checkpoints say that it was, with checksums that fit."""
    for folder in (run / "checkpoints").glob("0*"):
        torch.save({**checkpoint.load(folder, "progress"), key: value}, folder / "progress.pt")
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest["files"]["progress.pt"] = checksum(folder / "progress.pt")
        manifest["sizes"]["progress.pt"] = (folder / "progress.pt").stat().st_size
        (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("val", [{}, {"top1_error": "x"}])
def test_a_best_epoch_without_its_metric_is_refused(val: dict[str, object], run: Path) -> None:
    edit_progress(run, "best", {"epoch": 1, "val": val})
    with pytest.raises(PskdError, match="does not say the best epoch's top1_error: bring it back"):
        train(None, run, resume=True)


@pytest.mark.parametrize(("key", "value"), PROGRESS, ids=str)
def test_progress_of_another_kind_is_refused(key: str, value: object, run: Path) -> None:
    edit_progress(run, key, value)
    with pytest.raises(PskdError, match=r"checkpoint .* does not fit this run: progress\.pt is damaged"):
        train(None, run, resume=True)


@pytest.mark.parametrize(("channels", "stride", "spared"), [(4, 2, True), (15, 2, True), (16, 2, False), (4, 1, False)])
def test_a_narrow_convolution_does_not_damage_the_heap(channels: int, stride: int, spared: bool) -> None:
    """What is not channels-last does not go through the faulty gradient of oneDNN; that it is right is seen, too."""
    layer = torch.nn.Conv2d(channels, 8, 1, stride, bias=False).to(memory_format=torch.channels_last)
    build.spare_narrow(layer)
    x = torch.randn(32, channels, 16, 16).to(memory_format=torch.channels_last)
    out = layer(x)
    assert out.is_contiguous() == spared
    out.square().sum().backward()
    slow = layer.weight.detach().double().requires_grad_()
    torch.nn.functional.conv2d(x.double(), slow, stride=stride).square().sum().backward()
    assert layer.weight.grad is not None
    assert slow.grad is not None
    torch.testing.assert_close(layer.weight.grad.double(), slow.grad, rtol=1e-4, atol=1e-3)


def test_a_training_spares_narrow_convolutions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    spare = build.spare_narrow
    monkeypatch.setattr(build, "spare_narrow", lambda model: (found.append(model), spare(model)))
    words = ("model=preact_resnet", "model.blocks=[1,1]", "model.width=4", "model.shortcut=preact", "epochs=1")
    train(tiny(*words), tmp_path / "run")
    (model,) = found
    narrow = [
        layer for layer in model.modules() if getattr(layer, "kernel_size", 0) == (1, 1) and layer.stride == (2, 2)
    ]
    assert narrow
    assert all(layer.weight.stride() == (4, 1, 1, 1) and layer._forward_pre_hooks for layer in narrow)
