"""Training and finished runs from Python, and docs/python.md."""

from __future__ import annotations

import contextlib
import io
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import SMALL
from pages import texts
from PIL import Image

import pskd
from pskd.errors import PskdError


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> pskd.Run:
    return pskd.train("digits", *SMALL, "data.val_fraction=0.2", out=tmp_path_factory.mktemp("python") / "run")


def test_the_page_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    blocks = texts("docs/python.md", "python")
    assert len(blocks) == 4
    for block in blocks:
        exec(block, names)
    assert "epoch 2/2" in capsys.readouterr().out


def test_a_run_is_numbers_and_arrays(run: pskd.Run) -> None:
    assert list(run.history["epoch"]) == [1, 2, 3]
    assert run.history["val/nll"][-1] == pytest.approx(run.result["val"]["nll"])
    assert run.metrics.keys() >= {"top1_error", "nll", "ece"}
    assert "seed" not in run.metrics
    probs, labels = run.predictions["val_probs"], run.predictions["val_labels"]
    nll = -np.log(probs[np.arange(len(labels)), labels]).mean()
    assert nll == pytest.approx(run.result["val"]["nll"], rel=1e-5)
    assert "Top-1 err" in repr(run)
    assert run.config.model.name == "resnet8"


def test_a_finished_run_is_returned_and_an_unfinished_one_refused(run: pskd.Run, tmp_path: Path) -> None:
    before = (run.path / "metrics.jsonl").read_bytes()
    assert pskd.train(out=run.path, resume=True).metrics == run.metrics
    assert (run.path / "metrics.jsonl").read_bytes() == before
    with pytest.raises(PskdError, match="already holds a run"):
        pskd.train("digits", *SMALL, out=run.path)
    with pytest.raises(PskdError, match="which run"):
        pskd.train(resume=True)
    with pytest.raises(PskdError, match="is not finished"):
        pskd.Run(tmp_path)


def test_training_works_in_a_thread(tmp_path: Path) -> None:
    """Notebook servers and web applications call from threads, which cannot have signal handlers."""
    done: list[pskd.Run] = []
    words = ("digits", *SMALL, "epochs=1")
    screen = io.StringIO()
    with contextlib.redirect_stdout(screen):
        thread = threading.Thread(target=lambda: done.append(pskd.train(*words, out=tmp_path / "run")))
        thread.start()
        thread.join()
    assert done[0].metrics
    assert "epoch 1/1" in screen.getvalue()


def test_every_kind_of_image_gets_the_same_answer(run: pskd.Run, tmp_path: Path) -> None:
    classify = pskd.load(run.path)
    grey = np.random.default_rng(0).integers(0, 256, (8, 8), dtype=np.uint8)
    Image.fromarray(grey).save(tmp_path / "grey.png")
    kinds = [
        grey,
        grey[:, :, None],
        grey.astype(np.float32) / 255,
        torch.from_numpy(grey)[None],
        Image.fromarray(grey),
        tmp_path / "grey.png",
        str(tmp_path / "grey.png"),
    ]
    answers = classify(kinds)
    assert len({answer.label for answer in answers}) == 1
    assert np.ptp([answer.confidence for answer in answers]) < 1e-6
    assert [answer.image for answer in answers[4:6]] == ["image 4", str(tmp_path / "grey.png")]
    assert [one.label for one in classify(np.stack([grey, grey])[..., None])] == [answers[0].label] * 2
    with torch.no_grad():
        probs = classify.model(classify.preprocess(grey)[None]).softmax(1)[0]
    assert float(probs.max()) == pytest.approx(classify(grey, top=1).confidence, abs=1e-6)
    with pytest.raises(PskdError, match=r"cannot read image 'nothing\.png'"):
        classify("nothing.png")
    with pytest.raises(PskdError, match=r"image 0 has shape \(8,\)"):
        classify(grey[0])
    assert classify([]) == []


def test_many_images_are_opened_by_workers_in_their_order(run: pskd.Run, tmp_path: Path) -> None:
    classify = pskd.load(run.path)
    draw = np.random.default_rng(1)
    images = [draw.integers(0, 256, (8, 8), dtype=np.uint8) for _ in range(30)]
    files = []
    for number, image in enumerate(images):
        files.append(str(tmp_path / f"{number}.png"))
        Image.fromarray(image).save(files[-1])
    alone = [classify(image) for image in images]
    (tmp_path / "7.png").write_bytes(b"no image")
    found = list(classify.predict(files, batch_size=4, workers=2))
    assert isinstance(found[7], PskdError)
    for place, (one, other) in enumerate(zip(alone, found, strict=True)):
        if place != 7:
            assert not isinstance(other, PskdError)
            assert one.label == other.label  # type: ignore[attr-defined]
            assert one.confidence == pytest.approx(other.confidence, abs=1e-5)  # type: ignore[attr-defined]
            assert other.image == files[place]  # type: ignore[attr-defined]
