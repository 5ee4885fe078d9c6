"""A run folder that is damaged, or a stranger's: it is refused in one line or repaired, and nothing is lost."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import struct
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from chaos import equal, tiny
from helpers import SMALL, pskd, small
from processes import exit_code, in_child, obey_permissions

from pskd.errors import PskdError
from pskd.memory.bank import PredictionBank
from pskd.workbench.runs import checkpoint
from pskd.workbench.runs.files import checksum
from pskd.workbench.runs.folder import RunFolder
from pskd.workbench.runs.predictions import read
from pskd.workbench.train import build
from pskd.workbench.train.loop import train
from pskd.workbench.use import evaluate


class Hostile:
    """What a pickle can do to its reader."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.mark),)


def written(run: Path) -> tuple[bytes, bytes]:
    """What a run that is refused must keep."""
    return (run / "metrics.jsonl").read_bytes(), (run / "history.bin").read_bytes()


Change = Callable[[Path], object]


def config(change: Callable[[str], str | bytes]) -> Change:
    """Change config.yaml."""

    def edit(run: Path) -> None:
        content = change((run / "config.yaml").read_text())
        (run / "config.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())

    return edit


def replace(old: str, new: str) -> Change:
    def edit(text: str) -> str:
        assert old in text
        return text.replace(old, new)

    return config(edit)


def cut(share: float) -> Change:
    return config(lambda text: (part := text[: int(len(text) * share)])[: part.rindex("\n") + 1])


def checkpoints(change: Callable[[Path], object], extra: dict[str, str] | None = None) -> Change:
    """Change every checkpoint and make its checksums fit again, as an attacker would."""

    def edit(run: Path) -> None:
        for folder in (run / "checkpoints").glob("0*"):
            change(folder)
            files = {file.name: checksum(file) for file in sorted(folder.iterdir()) if file.name != "manifest.json"}
            (folder / "manifest.json").write_text(json.dumps({"step": 1, "files": {**files, **(extra or {})}}))

    return edit


def part(name: str, value: Any) -> Change:
    """A part of every checkpoint is ``value``, or what it makes of the folder."""
    return checkpoints(lambda folder: torch.save(value(folder) if callable(value) else value, folder / f"{name}.pt"))


def progress(key: str, value: object) -> Change:
    return part("progress", lambda folder: {**checkpoint.load(folder, "progress"), key: value})


def mark(folder: Path) -> Path:
    """What hostile code would leave behind."""
    return folder.parent.parent / "pwned"


def resized_bank(folder: Path) -> dict[str, Any]:
    state = checkpoint.load(folder, "method-0")
    return {**state, "memory": {**state["memory"], "records": torch.zeros(2**20, 1)}}


def every(pattern: str, change: Change) -> Change:
    return lambda run: [change(path) for path in (run / "checkpoints").glob(pattern)]


CODE = "!!python/object/apply:os.mkdir [pwned]"
CONFIGS: dict[str, str | bytes] = {
    "code": f"data: {CODE}",
    "code alone": CODE,
    "a list": "[1, 2]",
    "no end of a list": "a: [",
    "an unknown setting": "optim: {lrr: 1}",
    "a number for a section": "data: 3",
    "deep": "data: " + "[" * 5000,
    "huge": "about: " + "x" * 1_100_000,
    "not text": b"\xff\xfe\x00",
    "laughs in a value": "a: &a [x, x]\nb: &b [*a, *a]\ndata: {name: [*b, *b, *b, *b, *b]}",
    "laughs in an option": "train: {epochs: 1}\nmodel: {name: resnet8, width: [[1, 2], [3, 4]]}",
    "a hostile task": "task: ../../evil",
    "a task that is a list": "task: [1]",
}
CUT_OFF, OTHER = r"config\.yaml.*cut off", r"config\.yaml has other settings than the run was trained with"
PARTS = "checkpoint .*checkpoints.* does not fit this run: "
NO_BEST, NO_METRIC = "has no top1_error of the best epoch: restore it", ({}, {"top1_error": "x"})
TENSOR = torch.ones(1)
PROGRESS: list[tuple[str, object]] = [
    *(("best", 3), ("epoch_seconds", ["x"]), ("seconds", None), ("stretches", [[1]]), ("skipped", "x"), ("world", 0)),
    *(("epoch", 2**70), ("step", -1), ("step", "1"), ("sources", None), ("best", {"epoch": "x", "val": {}})),
    *(("best", {"epoch": 1, "val": {}, "name": TENSOR}), ("best", {"epoch": 1, "val": {"x": TENSOR}})),
    ("best", {"epoch": 1, "val": {"by_class": {"a": [TENSOR]}}}),
]
REFUSED: dict[str, tuple[Change, str]] = {
    **{name: (config(lambda _, text=text: text), r"config\.yaml") for name, text in CONFIGS.items()},  # type: ignore[misc]
    "half of the settings": (cut(0.5), CUT_OFF),
    "most of the settings": (cut(0.9), CUT_OFF),
    "no last setting": (config(lambda text: "".join(text.splitlines(True)[:-2])), CUT_OFF),
    "a section is gone": (config(lambda text: re.sub(r"^optim:\n(?:[ -].*\n)+", "", text, flags=re.M)), CUT_OFF),
    "another rate": (replace("lr: 0.1", "lr: 0.2"), OTHER),
    "more epochs": (replace("epochs: 2", "epochs: 3"), OTHER),
    "another momentum": (replace("momentum: 0.9", "momentum: 0.5"), OTHER),
    "code in a part": (part("model", lambda folder: Hostile(mark(folder))), PARTS + ".*cannot be read"),
    "code in a bank": (part("method-0", lambda folder: {"memory": Hostile(mark(folder))}), PARTS),
    "a part of another kind": (part("progress", [1, 2]), PARTS + r"progress\.pt is damaged"),
    "no such key": (part("progress", {}), PARTS + r"progress\.pt is damaged"),
    "another model": (part("model", {"w": torch.zeros(3)}), PARTS),
    "an optimizer of another model": (part("optimizer", {"state": {}, "param_groups": []}), PARTS),
    "no zip at all": (checkpoints(lambda folder: (folder / "model.pt").write_bytes(b"x" * 1000)), PARTS),
    "an empty file": (checkpoints(lambda folder: (folder / "model.pt").write_bytes(b"")), PARTS),
    "another bank": (part("method-0", {"epoch": 0, "memory": PredictionBank(3, 10).state_dict()}), PARTS),
    "a bank of wrong sizes": (part("method-0", resized_bank), PARTS),
    **{f"{key} {value}": (progress(key, value), PARTS + r"progress\.pt is damaged") for key, value in PROGRESS},
    **{f"a best epoch with {val}": (progress("best", {"epoch": 1, "val": val}), NO_BEST) for val in NO_METRIC},
    **{
        f"a manifest that names {name}": (
            checkpoints(lambda folder: None, {name: "0" * 64}),
            re.escape(f"({name} was changed), and there is no other"),
        )
        for name in ("../../secret", "/etc/passwd", "sub/model.pt")
    },
    "all checkpoints are damaged": (
        every("*/model.pt", lambda file: file.write_bytes(b"x")),
        r"is damaged \(model\.pt was changed\), and there is no other: .*--out",
    ),
    "all checkpoints are gone": (every("0*", shutil.rmtree), r"the checkpoints in .* are gone"),
    "a pipe for a log": (
        lambda run: (os.unlink(run / "log.txt"), os.mkfifo(run / "log.txt")),
        r"log\.txt is neither a file nor a folder",
    ),
}


@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_damaged_or_hostile_is_refused_in_one_line(change: Change, message: str, run: Path) -> None:
    change(run)
    before = written(run)
    with pytest.raises(PskdError, match=message) as refused:
        train(None, run, resume=True)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < (2000 if "state_dict" in str(refused.value) else 600)
    assert written(run) == before
    assert not Path("pwned").exists()
    assert not (run / "pwned").exists()


LINKS = ["history.bin", "log.txt", "metrics.jsonl", ".lock", "config.yaml", "result.json", "model.safetensors"]
LINKS += ["best.safetensors", "predictions.npz", ".model.safetensors.writing", ".config.yaml.1.writing"]
FOLDERS = ["checkpoints", "checkpoints/.writing-000000099", "drawn", "run"]


@pytest.mark.parametrize("name", LINKS + FOLDERS)
def test_a_link_is_not_followed(name: str, run: Path, tmp_path: Path) -> None:
    mine, place = tmp_path / "mine", run / name
    if place.exists():
        place.rename(mine)
    elif name in FOLDERS:
        mine.mkdir()
    else:
        mine.write_bytes(b"x" * 100_000)
    if name in FOLDERS:
        (mine / "notes.txt").write_text("kept")
    before = {path: path.is_file() and path.read_bytes() for path in [mine, *mine.rglob("*")]}
    place.symlink_to(mine)
    with pytest.raises(PskdError, match=rf"{re.escape(name)} is (a symbolic link|damaged)"):
        train(None, run, resume=True)
    assert {path: path.is_file() and path.read_bytes() for path in [mine, *mine.rglob("*")]} == before


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


def test_a_run_starts_again_when_its_user_removes_the_checkpoints(run: Path) -> None:
    shutil.rmtree(run / "checkpoints")
    assert train(None, run, resume=True)["epoch"] == 2


def test_checkpoints_that_cannot_be_read(run: Path, tmp_path: Path) -> None:
    output, before = tmp_path / "output", written(run)
    (run / "checkpoints").chmod(0o000)

    def work() -> None:
        obey_permissions()
        try:
            train(None, run, resume=True)
        except PskdError as error:
            output.write_text(str(error))

    assert exit_code(in_child(work)) == 0
    (run / "checkpoints").chmod(0o755)
    assert re.search(r"checkpoints.*ermission denied", output.read_text())
    assert written(run) == before


def test_a_configuration_of_an_earlier_release_can_be_read(run: Path) -> None:
    file = run / "config.yaml"
    old = [line for line in file.read_text().splitlines() if "clip_norm" not in line and not line.startswith("#")]
    file.write_text("\n".join(old) + "\n")
    assert RunFolder(run).config().train.clip_norm is None
    assert train(None, run, resume=True)["epoch"] == 2


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
            code, _, output = pskd(capfd, "train", "digits", *SMALL, "--out", out, *more)
            assert (code, message in output, output.count("\n")) == (2, True, 1), output
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


@pytest.mark.parametrize("header", [2**62, 2**31, 10])
def test_weights_with_a_lying_header(header: int, tmp_path: Path) -> None:
    train(small("epochs=1"), tmp_path / "run")
    path = tmp_path / "run" / "model.safetensors"
    path.write_bytes(struct.pack("<Q", header) + path.read_bytes()[8:])
    with pytest.raises(PskdError, match=r"model\.safetensors holds no weights of a pskd run"):
        evaluate(tmp_path / "run", "test")


def test_results_that_are_no_results(run: Path) -> None:
    for content in ("{", "[1]", "[" * 100_000):
        (run / "result.json").write_text(content)
        with pytest.raises(PskdError, match=r"result\.json is damaged"):
            RunFolder(run).result()
    (run / "metrics.jsonl").write_text('{"epoch": 1}\n3\n{"epoch": 2}\n')
    with pytest.raises(PskdError, match=r"metrics\.jsonl, line 2, is damaged"):
        RunFolder(run).metrics()
    (run / "metrics.jsonl").write_text('{"epoch": 1}\n{"epoch": 2, "tr')  # as a crash leaves it
    assert RunFolder(run).metrics() == [{"epoch": 1}]


@pytest.mark.parametrize("kind", ["pickle", "huge", "torn"])
def test_hostile_predictions(kind: str, run: Path, tmp_path: Path) -> None:
    content = io.BytesIO()
    if kind == "pickle":
        np.savez(content, probs=np.array([Hostile(tmp_path / "pwned")], dtype=object))
    else:
        with zipfile.ZipFile(content, "w") as archive:
            header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000, 100000), }"
            archive.writestr("probs.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)
    (run / "predictions.npz").write_bytes(content.getvalue()[: 40 if kind == "torn" else None])
    with pytest.raises(PskdError, match=r"predictions\.npz cannot be read"):
        read(run)
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(("channels", "stride", "spared"), [(4, 2, True), (15, 2, True), (16, 2, False), (4, 1, False)])
def test_a_narrow_convolution_does_not_damage_the_heap(channels: int, stride: int, spared: bool) -> None:
    """What is not channels-last does not go through the faulty gradient of oneDNN; that it is right is seen, too."""
    layer = torch.nn.Conv2d(channels, 8, 1, stride, bias=False).to(memory_format=torch.channels_last)
    build.avoid_narrow_channels_last(layer)
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
    models = []
    spare = build.avoid_narrow_channels_last
    monkeypatch.setattr(build, "avoid_narrow_channels_last", lambda model: (models.append(model), spare(model)))
    words = ("model=preact_resnet", "model.blocks=[1,1]", "model.width=4", "model.shortcut=preact", "epochs=1")
    train(tiny(*words), tmp_path / "run")
    (model,) = models
    narrow = [
        layer for layer in model.modules() if getattr(layer, "kernel_size", 0) == (1, 1) and layer.stride == (2, 2)
    ]
    assert narrow
    assert all(layer.weight.stride() == (4, 1, 1, 1) and layer._forward_pre_hooks for layer in narrow)
