"""How sure a finished run may be: found on its validation split, kept beside its weights, used by predict."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import pskd, small, unfinished
from PIL import Image

from pskd import load
from pskd.calibration import conformal_threshold, fit_temperature, prediction_sets, reject_threshold
from pskd.errors import PskdError
from pskd.workbench.runs import predictions
from pskd.workbench.tasks.classification.deployment import ClassCalibration, probabilities
from pskd.workbench.train.loop import train
from pskd.workbench.use import Predictor, calibrate


def fitted(run: Path) -> ClassCalibration:
    found = Predictor.from_run(run).calibration
    assert isinstance(found, ClassCalibration)
    return found


@pytest.fixture
def images(tmp_path: Path) -> Path:
    from sklearn.datasets import load_digits

    folder = tmp_path / "images"
    (folder / "more").mkdir(parents=True)
    for number, pixels in enumerate(load_digits().images[:20]):
        where = folder / "more" if number % 2 else folder
        Image.fromarray((pixels * 15.9).astype(np.uint8)).save(where / f"{number:02d}.png")
    return folder


def test_what_is_stored_is_what_the_functions_find(trained: Path) -> None:
    found, made = fitted(trained), predictions.read(trained, "val")
    log_probs = made.probs.double().clamp_min(1e-30).log()
    assert found.samples == len(made.labels) == 431
    assert found.temperature == pytest.approx(fit_temperature(log_probs, made.labels), rel=1e-4)
    for coverage in (0.8, 0.95):
        expected = conformal_threshold(probabilities(log_probs), made.labels, coverage)
        assert float(found.set_threshold(coverage)) == pytest.approx(float(expected), abs=1e-6)
    expected_reject = reject_threshold(probabilities(log_probs), made.labels, 0.2)
    assert found.reject_threshold(0.2) == pytest.approx(expected_reject, abs=1e-6)
    assert found.effect["val"].after["nll"] <= found.effect["val"].before["nll"]
    assert found.effect["test"].before["nll"] == pytest.approx(
        json.loads((trained / "result.json").read_text())["nll"], rel=1e-5
    )


def test_the_promises_hold_on_unseen_samples(trained: Path) -> None:
    """A trained network's test samples are the population; calibration sets are drawn from it again and again."""
    made = predictions.read(trained)
    log_probs, labels = made.probs.double().clamp_min(1e-30).log(), made.labels
    probs = probabilities(log_probs)
    sure, wrong = probs.amax(1), probs.argmax(1) != labels
    draw = torch.Generator().manual_seed(0)
    broken, covered, delta, draws, size = 0, [], 0.2, 100, 150
    for _ in range(draws):
        which = torch.randint(len(labels), (size,), generator=draw)
        about = {"weights": "", "task": "", "fitted_on": "", "ece_bins": 10, "effect": {}, "delta": delta}
        found = ClassCalibration.fit(log_probs[which], labels[which], **about)
        kept = sure >= found.reject_threshold(0.1)
        broken += bool(kept.any()) and float(wrong[kept].double().mean()) > 0.1
        sets = prediction_sets(probs, found.set_threshold(0.9))
        covered.append(float(sets.gather(1, labels[:, None]).double().mean()))
    assert broken <= draws * delta + 2.6 * (draws * delta * (1 - delta)) ** 0.5
    error = np.std(covered) / draws**0.5
    assert np.mean(covered) >= 0.9 - 3 * error
    assert float(wrong.double().mean()) > 0.1  # or nothing was promised


def test_sets_and_rejections_are_printed(trained: Path, images: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = pskd(capfd, "predict", str(trained), str(images), "--coverage", "0.9", "--json")
    assert (code, err) == (0, "")
    answers = [json.loads(line) for line in out.splitlines()]
    assert [Path(answer["image"]).name for answer in answers] == sorted(
        (path.name for path in images.rglob("*.png")), key=lambda name: (int(name[:2]) % 2, name)
    )
    for answer in answers:
        assert answer["set"][0] == answer["classes"][0][0]
    code, out, _ = pskd(capfd, "predict", str(trained), str(images), "--max-risk", "0.2")
    assert code == 0
    sure = [answer.sure for answer in load(trained)(sorted(map(str, images.rglob("*.png"))), max_risk=0.2)]
    assert out.count("not sure: ") == sure.count(False) > 0
    code, out, _ = pskd(capfd, "predict", str(trained), str(next(images.glob("*.png"))), "--coverage", "0.9")
    assert "one of: " in out


def test_a_table_is_written(trained: Path, images: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (images / "broken.png").write_bytes(b"")
    words = ("predict", str(trained), str(images), "--csv", str(tmp_path / "out.csv"), "--coverage", "0.9")
    code, out, err = pskd(capfd, *words, "--max-risk", "0.2", "--workers", "1")
    assert (code, out) == (2, f"{tmp_path / 'out.csv'}: 20 answers, 1 could not be read\n")
    assert "cannot read image" in err
    rows = list(csv.DictReader((tmp_path / "out.csv").open()))
    assert len(rows) == 20
    assert list(rows[0]) == ["image", "class", "probability", "set", "sure"]
    assert {row["sure"] for row in rows} == {"yes", "no"}
    for place, message in ((tmp_path, "this is a folder"), (tmp_path / "out.csv" / "x.csv", "this is a file")):
        code, out, err = pskd(capfd, "predict", str(trained), str(images), "--csv", str(place))
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert f"{message}, not a" in err
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "holds no image" in pskd(capfd, "predict", str(trained), str(empty))[2]


def test_probabilities_are_scaled_once_a_run_is_calibrated(copied: Path) -> None:
    image = np.random.default_rng(0).integers(0, 256, (8, 8), dtype=np.uint8)
    classify = load(copied)
    raw = classify.model(classify.preprocess(image)[None]).detach()
    expected = float((raw / classify.calibration.temperature).softmax(1).max())
    assert classify(image).confidence == pytest.approx(expected, abs=1e-6)
    (copied / "calibration.json").unlink()
    plain = load(copied)
    assert plain(image).confidence == pytest.approx(float(raw.softmax(1).max()), abs=1e-6)
    with pytest.raises(PskdError, match=r"is not calibrated.*pskd calibrate"):
        plain(image, coverage=0.9)


def test_calibrating_again_changes_nothing_and_options_are_kept(
    copied: Path, trained: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = fitted(copied)
    code, out, err = pskd(capfd, "calibrate", str(copied))
    assert (code, err) == (0, "")
    assert "temperature" in out
    assert "--max-risk 0.05 (held with probability 0.95): " in out
    # Up to rounding: in training the network had another memory format.
    again = fitted(copied)
    assert again.temperature == pytest.approx(before.temperature, rel=1e-5)
    assert (again.labels, again.wrong) == (before.labels, before.wrong)
    code, out, _ = pskd(capfd, "calibrate", str(copied), "--by-class", "--delta", "0.1", "--json", "--best")
    assert json.loads(out)["by_class"] is True
    assert (copied / "best.calibration.json").is_file()
    assert Predictor.from_run(copied, best=True).calibration.set_threshold(0.8).shape == (10,)
    assert fitted(copied).by_class is False


def test_calibration_of_other_weights_or_a_damaged_one_is_refused(copied: Path) -> None:
    file = copied / "calibration.json"
    whole = json.loads(file.read_text())
    for change, message in (
        ({"weights": "0"}, "was made for other weights"),
        ({"temperature": -1}, "temperature: "),
        ({"temperature": 1e-300}, "temperature: "),
        ({"effect": {"val": {"before": {"nll": 1.0}, "after": {}}}}, "do not name the same metrics"),
        ({"version": 2}, "version: "),
        ({"wrong": [True]}, "columns do not fit"),
        ({"labels": [10**6] * whole["samples"]}, "columns do not fit"),
        ({"run": "me"}, "run: "),
    ):
        file.write_text(json.dumps({**whole, **change}))
        with pytest.raises(PskdError, match=message):
            load(copied)
    for text in ("", "[" * 100_000, "nan", "\xff"):
        file.write_text(text)
        with pytest.raises(PskdError, match="make it again with pskd calibrate"):
            load(copied)
    calibrate(copied)
    assert fitted(copied).temperature == pytest.approx(whole["temperature"], rel=1e-5)


def test_never_on_what_was_trained_or_tested_on(
    copied: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert "test set is for measuring only" in pskd(capfd, "calibrate", str(copied), "--split", "test")[2]
    draw, arrays = np.random.default_rng(0), {}
    for split, count in (("train", 100), ("val", 200), ("test", 100)):
        arrays |= {f"{split}_images": draw.integers(0, 256, (count, 8, 8), np.uint8)}
        arrays |= {f"{split}_labels": np.arange(count) % 4}
    np.savez(tmp_path / "own.npz", **arrays)
    np.savez(tmp_path / "moved.npz", **arrays)
    own = ("data.name=npz", "data.per_class=null", f"data.root={tmp_path / 'own.npz'}", "epochs=1")
    train(small(*own), tmp_path / "own")
    for split, expected in (("test", (2, True)), ("val", (0, False))):
        root = str(tmp_path / "moved.npz")
        code, _, err = pskd(capfd, "calibrate", str(tmp_path / "own"), "--root", root, "--split", split)
        assert (code, "its own test set" in err) == expected
    code, _, err = pskd(capfd, "calibrate", str(copied), "--root", str(tmp_path))
    assert (code, "'digits' comes with pskd, it is not read from" in err) == (2, True)
    train(small("epochs=1"), tmp_path / "none")
    code, _, err = pskd(capfd, "calibrate", str(tmp_path / "none"))
    assert code == 2
    assert "has no validation split; train with one, pskd train ... data.val_fraction=0.1" in err
    assert err.count("\n") == 1
    with pytest.raises(PskdError, match=r"train\.calibrate=true: .* no validation split.*data\.val_fraction=0\.1"):
        train(small("train.calibrate=true"), tmp_path / "early")
    assert not (tmp_path / "early").exists()


def test_images_that_were_trained_on_are_known_by_any_name(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A part of the training images, or of the test images, as the val folder of other data."""
    from sklearn.datasets import load_digits

    digits, own = load_digits(), tmp_path / "own"
    for place in range(240):
        split = "train" if place < 120 else "test" if place < 180 else "fresh"
        folder = own / split / f"{digits.target[place]}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray((digits.images[place] * 15.9).astype(np.uint8)).save(folder / f"{place}.png")
    shutil.move(own / "fresh", tmp_path / "fresh")
    words = ("data=folder", f"data.root={own}", "data.per_class=null", "data.image_size=8", "epochs=1")
    train(small(*words), tmp_path / "run")
    for source, word in (("train", "training"), ("test", "test"), ("fresh", "")):
        other = tmp_path / f"other-{source}"
        shutil.copytree(tmp_path / "fresh", other / "val")
        for split in ("train", "test"):
            shutil.copytree(tmp_path / "fresh", other / split)
        for path in (tmp_path / "fresh").rglob("*.png") if source == "fresh" else (own / source).rglob("*.png"):
            shutil.copy(path, other / "val" / path.parent.name / f"again-{path.name}")
        code, _, err = pskd(capfd, "calibrate", str(tmp_path / "run"), "--root", str(other))
        assert code == (2 if word else 0)
        assert (f"of these images are in its own {word} set" in err) == bool(word)
        assert err.count("\n") == code // 2
    own.rename(tmp_path / "moved")  # what is not there cannot be compared, and stops nobody
    assert pskd(capfd, "calibrate", str(tmp_path / "run"), "--root", str(other))[0] == 0
    words = ("calibrate", str(tmp_path / "run"), "--root", str(tmp_path / "moved"), "--split", "test")
    assert "this is its own test set" in pskd(capfd, *words)[2]  # known by its fingerprint


def test_a_changed_validation_split_is_noticed(copied: Path) -> None:
    text = (copied / "config.yaml").read_text()
    (copied / "config.yaml").write_text(text.replace("val_fraction: 0.3", "val_fraction: 0.4"))
    with pytest.raises(PskdError, match="val split has changed since it was trained"):
        calibrate(copied)


def test_a_resumed_run_is_calibrated_as_an_undisturbed_one(tmp_path: Path) -> None:
    config = small("data.val_fraction=0.3", "train.calibrate=true", "epochs=1")
    out = unfinished(tmp_path / "run", config)
    before = (out / "calibration.json").read_bytes()
    (out / "calibration.json").unlink()
    train(None, out, resume=True)
    assert (out / "calibration.json").read_bytes() == before


def test_an_evaluation_says_where_the_mistakes_are(trained: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = pskd(capfd, "evaluate", str(trained), "--json")
    assert (code, err) == (0, "")
    found, made = json.loads(out), predictions.read(trained)
    matrix = torch.tensor(found["confusion"])
    assert int(matrix.sum()) == len(made.labels)
    assert 100 * (1 - float(matrix.trace()) / len(made.labels)) == pytest.approx(found["top1_error"])
    assert found["coverage_at_1"] <= found["coverage_at_5"] <= found["coverage_at_10"]
    pair = found["most_confused"][0]
    assert matrix[int(pair["label"]), int(pair["taken_for"])] == pair["times"]
    _, out, _ = pskd(capfd, "evaluate", str(trained))
    assert f"  {pair['label']} taken for {pair['taken_for']}: {pair['times']} of " in out
    assert "Coverage at 1% error" in out
