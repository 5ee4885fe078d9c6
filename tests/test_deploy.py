"""docs/deploy.md is true: its commands and programs run, and agree with each other."""

from __future__ import annotations

import importlib.util
import json
import shlex
import threading
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from helpers import pskd
from pages import ROOT, blocks
from PIL import Image

from pskd import load, train

BLOCKS = blocks("docs/deploy.md", "python", "bash")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run and the photo that the page speaks of."""
    folder = tmp_path_factory.mktemp("deploy")
    draw = np.random.default_rng(0)
    for split, count in (("train", 8), ("val", 60), ("test", 4)):
        for shade, name in enumerate(("cat", "dog")):
            (folder / "data" / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = draw.normal(60 + 120 * shade, 30, (32, 32, 3)).clip(0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / "data" / split / name / f"{number}.png")
    Image.fromarray(pixels).save(folder / "photo.png")
    words = ("model=torchvision:squeezenet1_1", "data.image_size=32", "epochs=1", "data.workers=0", "train.threads=1")
    train("folder", f"data.root={folder / 'data'}", *words, "method=hard", "optim.lr=0.01", out=folder / "runs/mine")
    return folder


def test_the_page_is_true(place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(place)
    results = []
    for kind, text in BLOCKS:
        if kind == "python":
            names: dict[str, object] = {}
            exec(text, names)
            results.append(np.asarray(names["probabilities"]).reshape(-1))
            assert capfd.readouterr().out.strip() in ("cat", "dog")
            continue
        for command in text.splitlines():
            program, *words = shlex.split(command)
            if program == "pskd":
                code, out, err = pskd(capfd, *words)
                assert (code, err) == (0, ""), f"{command}: {err}"
                assert out
    classify = load("runs/mine")
    plain, calibrated = results
    temperature = classify.calibration.temperature
    scaled = plain ** (1 / temperature)
    assert np.abs(scaled / scaled.sum() - calibrated).max() < 1e-5
    shown = dict(classify("photo.png", top=2).classes)
    assert [shown["cat"], shown["dog"]] == pytest.approx(calibrated.tolist(), abs=1e-5)
    assert load("mine-hub")("photo.png").to_dict() == classify("photo.png").to_dict()


def test_the_server_answers_and_refuses(place: Path) -> None:
    spec = importlib.util.spec_from_file_location("serve", ROOT / "examples" / "serve.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    server = module.server(str(place / "runs/mine"), 0)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}"
    try:
        with urllib.request.urlopen(address, (place / "photo.png").read_bytes()) as reply:
            answer = json.load(reply)
        assert {name for name, _ in answer["classes"]} == {"cat", "dog"}
        with pytest.raises(urllib.error.HTTPError, match="400"):
            urllib.request.urlopen(address, b"no image")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
