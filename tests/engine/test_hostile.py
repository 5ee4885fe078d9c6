"""A run folder from a stranger: nothing of it is unpickled, and whatever is wrong with it ends in a clear error."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from chaos import tiny
from helpers import small, unfinished

from pskd.errors import PskdError
from pskd.memory.bank import PredictionBank
from pskd.workbench.analysis.ensembles import read
from pskd.workbench.runs import checkpoint
from pskd.workbench.runs.checkpoint import Checkpoints
from pskd.workbench.runs.files import checksum
from pskd.workbench.runs.folder import RunFolder
from pskd.workbench.train.loop import train
from pskd.workbench.use import evaluate


class Hostile:
    """What a pickle can do to its reader."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.mark),)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of which a checkpoint in the middle of its second epoch is the last thing."""
    return unfinished(tmp_path_factory.mktemp("stopped") / "run", tiny("epochs=2"))


@pytest.fixture
def run(stopped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped, tmp_path / "run"))


CONFIGS = {
    "code": "data: !!python/object/apply:os.mkdir [pwned]",
    "a list": "[1, 2]",
    "a number for a section": "data: 3",
    "deep": "data: " + "[" * 5000,
    "huge": "about: " + "x" * 1_100_000,
    "not text": b"\xff\xfe\x00",
    "laughs in a value": "a: &a [x, x]\nb: &b [*a, *a]\ndata: {name: [*b, *b, *b, *b, *b]}",
    "laughs in an option": "train: {epochs: 1}\nmodel: {name: resnet8, width: [[1, 2], [3, 4]]}",
    "a hostile task": "task: ../../evil",
    "a task that is a list": "task: [1]",
}


@pytest.mark.parametrize("content", CONFIGS.values(), ids=CONFIGS)
def test_a_hostile_config(content: str | bytes, run: Path) -> None:
    (run / "config.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(PskdError) as caught:
        train(None, run, resume=True)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600
    assert not Path("pwned").exists()


def rewritten(run: Path, change: Callable[[Path], dict[str, Any] | None]) -> None:
    """Change every checkpoint and make its checksums fit again, as an attacker would."""
    for folder in (run / "checkpoints").glob("0*"):
        extra = change(folder)
        files = {file.name: checksum(file) for file in sorted(folder.glob("*.pt"))}
        (folder / "manifest.json").write_text(json.dumps({"step": 1, "files": {**files, **(extra or {})}}))


def save(folder: Path, name: str, value: Any) -> None:
    torch.save(value, folder / f"{name}.pt")


def loaded(folder: Path, name: str) -> Any:
    return checkpoint.load(folder, name)


CHECKPOINTS: dict[str, Callable[[Path], dict[str, Any] | None]] = {
    "code in a part": lambda folder: save(folder, "model", Hostile(folder.parent.parent / "pwned")),
    "code in a bank": lambda folder: save(folder, "method-0", {"memory": Hostile(folder.parent.parent / "pwned")}),
    "a part of another kind": lambda folder: save(folder, "progress", [1, 2]),
    "no such key": lambda folder: save(folder, "progress", {}),
    "another model": lambda folder: save(folder, "model", {"w": torch.zeros(3)}),
    "an optimizer of another model": lambda folder: save(folder, "optimizer", {"state": {}, "param_groups": []}),
    "no zip at all": lambda folder: (folder / "model.pt").write_bytes(b"x" * 1000) and None,
    "an empty file": lambda folder: (folder / "model.pt").write_bytes(b"") and None,
    "a step that is text": lambda folder: save(folder, "progress", {**loaded(folder, "progress"), "step": "1"}),
    "another bank": lambda folder: save(folder, "method-0", {"epoch": 0, "memory": PredictionBank(3, 10).state_dict()}),
    "a bank of wrong sizes": lambda folder: save(
        folder,
        "method-0",
        (lambda state: {**state, "memory": {**state["memory"], "records": torch.zeros(2**20, 1)}})(
            loaded(folder, "method-0")
        ),
    ),
}


@pytest.mark.parametrize("change", CHECKPOINTS.values(), ids=CHECKPOINTS)
def test_a_hostile_checkpoint(change: Callable[[Path], dict[str, Any] | None], run: Path) -> None:
    rewritten(run, change)
    with pytest.raises(PskdError) as caught:
        train(None, run, resume=True)
    assert str(run / "checkpoints") in str(caught.value)
    assert not (run / "pwned").exists()


@pytest.mark.parametrize("name", ["../../secret", "/etc/passwd", "sub/model.pt"])
def test_a_manifest_names_files_of_its_own_folder_only(name: str, run: Path) -> None:
    said: list[str] = []
    rewritten(run, lambda folder: {name: "0" * 64})
    with pytest.raises(PskdError, match=re.escape(f"({name} was changed), and there is no other")):
        Checkpoints(run / "checkpoints", 2).newest(said.append)
    assert all(f"({name} was changed)" in line for line in said)


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
