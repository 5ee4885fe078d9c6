"""Cases of run folders and studies that come from strangers or a damaged disk."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from safetensors.torch import load, save

from fuzzing.case import TINY, TINY_SCENES, Case, Templates
from fuzzing.values import JSON_VALUES, changed_tree, damaged
from pskd.workbench.runs.files import checksum

NAMES = ["run", "run", "run", "$\\frac{$", "a\nb", "\udcff\udcfe", "<b>", "-x", "x" * 200, "a b", "%s{0}"]
DEEP = "[" * 100_000
STRANGE = [*JSON_VALUES, "evil:thing", "evil:thing"]  # a folder may name code, which must not be imported


def run_folders(draw: random.Random, here: Path, templates: Templates) -> Case:
    """A command on a copy of a run with one changed file."""
    kind = draw.choices(["finished", "stopped", "text", "scenes"], [6, 4, 2, 2])[0]
    run = here / draw.choice(NAMES)
    shutil.copytree(getattr(templates, kind), run)
    shutil.copytree(templates.other, here / "good")
    shutil.copy(templates.finished.parent / "x.png", here)
    file = draw.choice(sorted(path for path in run.rglob("*") if path.is_file()))
    locked = _harm(draw, run, file)
    name = f"./{run.name}"
    commands = {
        "finished": [["evaluate", name], ["evaluate", name, "--best"], ["evaluate", name, "--split", "val"]],
        "stopped": [["train", "--resume", "--out", name]],
        "text": [["predict", name, "--text", "eins"], ["report", name]],
        "scenes": [["predict", name, "x.png"], ["report", name], ["evaluate", name]],
    }[kind]
    if kind == "finished":
        commands += [["predict", name, "x.png"], ["predict", name, "x.png", "--json"], ["ensemble", name, "good"]]
        commands += [
            ["report", name],
            ["report", name, "good"],
            ["report", "good", name, "--figures", "f", "--tables", "t"],
        ]
        commands += [["train", "digits", *TINY, "method=tf_kd", f"method.teacher={name}", "--out", "new"]]
        commands += [["train", "detection/digits", *TINY_SCENES, f"model.backbone={name}", "--out", "new"]]
        commands += [["train", "--resume", "--out", name]]
    return Case(draw.choice(commands), locked=locked)


def _harm(draw: random.Random, run: Path, file: Path) -> bool:
    """Damage a file of a run; returns whether its permissions were changed."""
    by_schema = SCHEMAS.get(file.suffix)
    if by_schema is not None and draw.random() < 0.6:
        by_schema(draw, file)
        if file.parent.parent.name == "checkpoints":
            _sum_up(file.parent)
        return False
    kind = draw.choice(
        ["bytes", "bytes", "bytes", "gone", "link", "hard link", "pipe", "folder", "socket", "sparse", "locked", "deep"]
    )
    if kind == "bytes":
        file.write_bytes(damaged(draw, file.read_bytes()))
    elif kind == "gone":
        draw.choice([lambda: file.unlink(), lambda: shutil.rmtree(run / "checkpoints", ignore_errors=True)])()
    elif kind in ("link", "hard link"):
        mine = run.parent.parent / "outside" / "mine"
        shutil.copy(file, mine)
        file.unlink()
        file.symlink_to(draw.choice([mine, "/dev/zero", "/proc/self/mem", file])) if kind == "link" else os.link(
            mine, file
        )
    elif kind in ("pipe", "folder", "socket"):
        file.unlink()
        if kind == "pipe":
            os.mkfifo(file)
        elif kind == "folder":
            file.mkdir()
        else:
            _socket(file)
    elif kind == "sparse":
        os.truncate(file, draw.choice([10**8, 10**11, file.stat().st_size + 8]))
    elif kind == "deep":
        file.write_text(DEEP)
    else:
        draw.choice([file, file, run, file.parent]).chmod(draw.choice([0, 0o400, 0o500]))
        return True
    return False


def _socket(place: Path) -> None:
    before = os.getcwd()
    os.chdir(place.parent)  # a socket's name is short
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(place.name)
    except OSError:
        os.mkfifo(place)
    finally:
        os.chdir(before)


def _json(draw: random.Random, file: Path) -> None:
    file.write_text(json.dumps(changed_tree(draw, json.loads(file.read_text()), lambda: draw.choice(STRANGE))))


def _json_lines(draw: random.Random, file: Path) -> None:
    records = changed_tree(draw, [json.loads(line) for line in file.read_text().splitlines()])
    file.write_text(
        "".join(json.dumps(record) + "\n" for record in (records if isinstance(records, list) else [records]))
    )


def _yaml(draw: random.Random, file: Path) -> None:
    tree = changed_tree(draw, yaml.safe_load(file.read_text()), lambda: draw.choice(STRANGE))
    text = json.dumps(tree) if "\\ud800" in repr(tree) else yaml.safe_dump(tree, sort_keys=False)
    file.write_text(text + "# end of settings\n")


def _arrays(draw: random.Random, file: Path) -> None:
    with np.load(file) as stored:
        arrays = {name: stored[name] for name in stored.files}
    name = draw.choice(list(arrays))
    old = arrays.pop(name)
    number = old.dtype.kind in "fiu"
    changes: list[Callable[[], Any]] = [
        *(
            lambda: None,
            lambda: old[..., :0] if old.ndim else old,
            lambda: old[:1] if old.ndim else old[None],
            lambda: old[None],
        ),
        *(lambda: np.array("x"), lambda: np.zeros((2, 3)), lambda: np.full(old.shape, np.nan), lambda: old.astype(str)),
        *(lambda: old.astype(complex) if number else old, lambda: old.astype(np.uint64) + 2**63 if number else old),
        *(
            lambda: -old if number else old,
            lambda: np.full(old.shape, 10**9),
            lambda: np.array(["\x1b", "<b>", "\ud800"]),
        ),
        lambda: old.astype(">f2") if number else old,
    ]
    if (new := draw.choice(changes)()) is not None:
        arrays[name] = new
    content = io.BytesIO()
    np.savez(content, allow_pickle=True, **arrays)
    file.write_bytes(content.getvalue())


def _weights(draw: random.Random, file: Path) -> None:
    content = file.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    about, tensors = json.loads(header["__metadata__"]["pskd"]), load(content)
    if draw.random() < 0.7:
        about = changed_tree(draw, about, lambda: draw.choice(STRANGE))
    else:
        name = draw.choice(list(tensors))
        new = [None, torch.zeros(3), tensors[name].double(), tensors[name] * torch.nan, tensors[name].to(torch.int32)]
        tensors[name] = draw.choice(new)
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    file.write_bytes(save(kept, draw.choice([None, {}]) if draw.random() < 0.05 else {"pskd": json.dumps(about)}))


def _part(draw: random.Random, file: Path) -> None:
    tree = torch.load(file, weights_only=True)
    odd: list[Any] = [
        *(None, 0, -1, 2**70, 1.5, "x", [], {}, torch.zeros(2), torch.zeros(0), torch.tensor(float("nan")), True),
    ]
    torch.save(changed_tree(draw, tree, lambda: draw.choice(odd)), file)


def _sum_up(folder: Path) -> None:
    """Make the checksums fit again, as an attacker would."""
    manifest = folder / "manifest.json"
    tree = json.loads(manifest.read_text()) if manifest.is_file() else {}
    if isinstance(tree, dict) and isinstance(tree.get("files"), dict):
        tree["files"] = {name: checksum(folder / name) for name in tree["files"] if (folder / str(name)).is_file()}
        tree["sizes"] = {name: (folder / name).stat().st_size for name in tree["files"]}
        manifest.write_text(json.dumps(tree))


def _recorded(draw: random.Random, file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[:8] = draw.choice(
        [b"\0" * 8, b"\xff" * 8, (10**6).to_bytes(7, "little") + b"\2", b"\1" + b"\0" * 6 + b"\2", b"\x30" + b"\0" * 7]
    )
    file.write_bytes(content)


SCHEMAS = {".json": _json, ".jsonl": _json_lines, ".yaml": _yaml, ".npz": _arrays, ".safetensors": _weights}
SCHEMAS |= {".pt": _part, ".bin": _recorded}


def study_folders(draw: random.Random, here: Path, templates: Templates) -> Case:
    """A command on a copy of a finished study with one changed file."""
    shutil.copytree(templates.study, here / "study", symlinks=True)
    top = [path for path in (here / "study").iterdir() if path.is_file()]
    files = top if draw.random() < 0.6 else [path for path in (here / "study").rglob("*") if path.is_file()]
    locked = _harm(draw, here / "study", draw.choice(sorted(files)))
    command = draw.choice([["study", "status"], ["study", "work"], ["study", "stop"], ["report"]])
    return Case([*command, "study"], locked=locked)
