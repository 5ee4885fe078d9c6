"""A detector from its trunk to its drawings, in the same loop as a classifier."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import metrics_of, small
from PIL import Image
from processes import exit_code, in_child, in_children
from safetensors.torch import load_file

from pskd.errors import PskdError
from pskd.metrics.detection import Detections, Objects, voc_average_precision
from pskd.workbench.augment.boxes import Resize
from pskd.workbench.config import Config, resolve
from pskd.workbench.recipes import read_recipe
from pskd.workbench.report.page import report
from pskd.workbench.report.tables import result_lines
from pskd.workbench.runs.checkpoint import Checkpoints
from pskd.workbench.tasks.detection import Detection
from pskd.workbench.tasks.detection.deployment import DeployedDetector, differences
from pskd.workbench.tasks.detection.predictor import class_colour
from pskd.workbench.tasks.predictor import Predictor
from pskd.workbench.train.loop import train
from pskd.workbench.use import calibrate, evaluate, predict

TINY = (
    "data.train_images=12",
    "data.test_images=7",
    "model.pyramid_width=8",
    "model.box_width=16",
    "model.rois=8",
    "epochs=2",
    "eval.every=1",
)


def tiny(backbone: object, *overrides: str) -> Config:
    """12 scenes, 2 epochs of 3 steps."""
    return resolve(read_recipe("detection/digits"), [*TINY, f"model.backbone={backbone}", *overrides], name="tiny")


@pytest.fixture(scope="module")
def trunk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trunk") / "run"
    train(small("epochs=1"), out)
    return out


@pytest.fixture(scope="module")
def finished(trunk: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("detector") / "run"
    train(tiny(trunk), out)
    return out


def test_what_a_run_leaves_behind(finished: Path, trunk: Path) -> None:
    result = json.loads((finished / "result.json").read_text())
    assert {"map50", "map50_11point", "ap_per_class", "coco_ap", "coco_ap50", "coco_ap75"} <= set(result)
    log = (finished / "log.txt").read_text()
    assert f"trunk from {trunk}: 42 weights taken over, 2 not (fc.weight, fc.bias)" in log
    assert "stages.2.0.residual.1.0.weight" in log
    assert "roi_heads.box_predictor.cls_score.weight" in log
    table = result_lines({**result, "ap_per_class": {"0": 0.5}, "ap_per_class_11point": {"0": 0.25}})
    assert table[-1].split() == ["0", "0.5000", "0.2500"]
    with np.load(finished / "predictions.npz", allow_pickle=False) as stored:
        objects = Objects(*(stored[f"object_{name}"] for name in Objects._fields))
        detections = Detections(*(stored[f"detected_{name}"] for name in Detections._fields))
        classes = stored["classes"].tolist()
    area = voc_average_precision(objects, detections, len(classes)).area
    assert np.nanmean(area) == pytest.approx(result["map50"])
    assert {c: a for c, a in zip(classes, area, strict=True) if np.isfinite(a)} == pytest.approx(result["ap_per_class"])


def test_the_trunk_is_where_training_starts(trunk: Path) -> None:
    started, source = Detection(tiny(trunk)).model().state_dict(), load_file(trunk / "model.safetensors")
    assert torch.equal(started["backbone.body.part0.0.weight"], source["stem.0.weight"])
    assert torch.equal(
        started["backbone.body.part3.0.residual.1.1.running_var"], source["stages.2.0.residual.1.1.running_var"]
    )


def test_is_used_without_its_trunks_run(finished: Path, trunk: Path, tmp_path: Path) -> None:
    """And boxes come out in the pixels of the image as it was given."""
    result = json.loads((finished / "result.json").read_text())
    image = Detection(tiny(trunk)).data.test.source[0, 0].numpy()
    moved = trunk.with_name("elsewhere")
    trunk.rename(moved)
    try:
        assert evaluate(finished, "test")["map50"] == result["map50"]
        for size in (96, 192):
            Image.fromarray(image).resize((size, size)).save(tmp_path / f"{size}.png")
        (tmp_path / "broken.png").write_bytes(b"")
        inputs = [str(tmp_path / name) for name in ("96.png", "broken.png", "192.png")]
        plain, broken, double = predict(finished, inputs, min_score=0.0, draw=tmp_path / "drawn")
    finally:
        moved.rename(trunk)
    assert isinstance(broken, PskdError)
    assert json.loads(plain.text()) == plain.to_dict()
    found = plain.to_dict()["objects"]
    assert found
    assert set(found[0]) == {"class", "score", "box"}
    edges = np.array([item["box"] for item in double.to_dict()["objects"]])
    assert edges.max() > 96
    for answer, size in ((plain, 96), (double, 192)):
        with Image.open(answer.to_dict()["drawing"]) as drawn:
            assert drawn.format == "PNG"
            assert drawn.size == (size * (400 // size),) * 2
            painted = {tuple(pixel) for pixel in np.asarray(drawn).reshape(-1, 3)}
        places = {int(item["class"]) for item in answer.to_dict()["objects"]}
        assert {class_colour(place) for place in places} <= painted  # each class has a colour of its own
    assert len({class_colour(place) for place in range(80)}) == 80


def test_the_page_shows_its_boxes(finished: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    with np.load(run / "predictions.npz", allow_pickle=False) as stored:
        kept = dict(stored)
    # All objects of the first image are found, and one is in the second that is not there.
    first = kept["object_image"] == 0
    found = {name: kept[f"object_{name}"][first] for name in ("image", "label", "boxes")}
    wrong = {"image": np.array([1]), "label": np.array([3]), "boxes": np.array([[0.0, 0.0, 5.0, 5.0]])}
    kept |= {f"detected_{name}": np.concatenate((found[name], wrong[name])) for name in found}
    kept["detected_scores"] = np.full(int(first.sum()) + 1, 0.75)
    np.savez(run / "predictions.npz", **kept)
    report([run], tmp_path / "page.html", samples=[0, 1])
    page = (tmp_path / "page.html").read_text()
    label = int(kept["object_label"][0])
    assert f'stroke="#{"".join(f"{part:02x}" for part in class_colour(label))}"><title>{label} 0.75</title>' in page
    assert page.count('class="object"') == np.isin(kept["object_image"], _shown(page)).sum()
    assert "image 1: 0 of " in page
    assert "found, 1 wrong" in page
    assert "digit scenes" in page  # not the digits that its trunk learnt
    np.savez(run / "predictions.npz", **{**kept, "detected_label": kept["detected_label"] + 1000})
    report([run], tmp_path / "page.html")  # a damaged file takes only the images away
    assert 'class="object"' not in (tmp_path / "page.html").read_text()


def _shown(page: str) -> list[int]:
    return [int(number) for number in re.findall(r'<image id="[^"]*-image-(\d+)"', page)]


def test_c4_with_frozen_parts_several_sizes_and_validation(trunk: Path, tmp_path: Path) -> None:
    words = ("model.head=c4", "model.anchors=[]", "model.frozen=1", "model.statistics=frozen", "data.val_images=3")
    sizes = ("augment.sizes=[48,64]", "augment.flip=true", "data.image_size=64", "data.test_images=3", "epochs=1")
    result = train(tiny(trunk, *words, *sizes), tmp_path / "run")
    assert result["best"]["epoch"] == 1
    assert result["val"]["map50"] >= 0


def test_torchvisions_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cache stands in for the network."""
    from torchvision.models import ResNet18_Weights, resnet18

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    published, cache = resnet18().state_dict(), tmp_path / "hub" / "checkpoints"
    cache.mkdir(parents=True)
    torch.save(published, cache / ResNet18_Weights.IMAGENET1K_V1.url.rsplit("/", 1)[1])
    task = Detection(tiny("torchvision:resnet18", "model.weights=IMAGENET1K_V1", "model.anchors=[]"))
    started = task.model().state_dict()
    assert torch.equal(started["backbone.body.part4.1.conv2.weight"], published["layer4.1.conv2.weight"])
    assert "120 weights taken over, 2 not (fc.weight, fc.bias)" in task.notes[0]


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_the_first_run_reaches_what_it_promises(tmp_path: Path) -> None:
    train(resolve(read_recipe("digits"), name="digits"), tmp_path / "trunk")
    words = [f"model.backbone={tmp_path / 'trunk'}"]
    assert train(resolve(read_recipe("detection/digits"), words), tmp_path / "run")["map50"] > 0.9


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("model.backbone=",), "model.backbone is missing"),
        (("model.backbone=no/run",), "model.backbone=no/run: there is no such run folder"),
        (("model.backbone=torchvision:squeezenet1_1",), "torchvision:squeezenet1_1 .* cannot be a trunk"),
        (("model.backbone=resnet9",), "model 'resnet9' is unknown"),
        (("model.weights=DEFAULT",), "model.weights=DEFAULT is for torchvision's models"),
        (("model.backbone=torchvision:resnet18", "model.weights=NONE_OF_THEM"), "refuses its options"),
        (
            ("method=ps_kd",),
            "method=ps_kd: a detector takes hard only; other methods reach it through its trunk, model.backbone=RUN",
        ),
        (("model.heads=c4",), "did you mean model.head?"),
        (("data=voc",), "needs data.root"),
    ],
)
def test_mistakes_end_in_one_line(words: tuple[str, ...], message: str, trunk: Path, tmp_path: Path) -> None:
    with pytest.raises(PskdError, match=message):
        train(tiny(trunk, *words), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_runs_that_cannot_give_a_trunk(finished: Path, trunk: Path, tmp_path: Path) -> None:
    with pytest.raises(PskdError, match="is a run of detection, not of classification"):
        train(tiny(finished), tmp_path / "run")
    unfinished = tmp_path / "unfinished"
    shutil.copytree(trunk, unfinished)
    (unfinished / "model.safetensors").unlink()
    with pytest.raises(PskdError, match=r"has lost its model.safetensors"):
        train(tiny(unfinished), tmp_path / "run")


def test_killed_and_resumed_equals_undisturbed(trunk: Path, finished: Path, tmp_path: Path) -> None:
    out, config = tmp_path / "run", tiny(trunk, "train.save_every=1 steps")

    def killed_after_a_checkpoint() -> None:
        save = Checkpoints.save

        def last(*parts: Any) -> None:
            save(*parts)
            os.kill(os.getpid(), signal.SIGKILL)

        Checkpoints.save = last  # type: ignore[method-assign, assignment]
        train(config, out, resume=True)

    for _ in range(3):  # each time one step more than the time before
        assert exit_code(in_child(killed_after_a_checkpoint)) == -signal.SIGKILL
    assert not (out / "result.json").exists()
    train(config, out, resume=True)
    ours, theirs = load_file(out / "model.safetensors"), load_file(finished / "model.safetensors")
    assert metrics_of(out) == metrics_of(finished)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_two_processes_have_exact_metrics(trunk: Path, tmp_path: Path) -> None:
    out, config = tmp_path / "run", tiny(trunk, "data.train_images=9", "epochs=1")
    assert [exit_code(child) for child in in_children(lambda: train(config, out), 2)] == [0, 0]
    result, alone = json.loads((out / "result.json").read_text()), evaluate(out, "test")
    assert result["processes"] == 2
    assert alone["ap_per_class"] == pytest.approx(result["ap_per_class"])
    assert [alone[name] for name in ("map50", "coco_ap")] == pytest.approx([result[n] for n in ("map50", "coco_ap")])


def test_a_detector_that_finds_nothing_has_a_result_but_no_calibration(
    trunk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("data.val_images=3", "epochs=1", "model.min_score=1", "train.calibrate=true")
    train(tiny(trunk, *words), tmp_path / "run")
    assert (tmp_path / "run" / "result.json").is_file()
    assert not (tmp_path / "run" / "calibration.json").exists()
    assert "not calibrated: nothing was detected on these images" in capsys.readouterr().out
    with pytest.raises(PskdError, match="nothing was detected on these images, so there is nothing to calibrate"):
        calibrate(tmp_path / "run")
    with pytest.raises(PskdError, match="is not calibrated: pskd calibrate"):
        list(predict(tmp_path / "run", ["any.png"], max_risk=0.1))


def test_a_hub_folder_is_loaded_and_torch_export_refused(finished: Path, tmp_path: Path) -> None:
    from pskd.workbench.api import export, load

    export(finished, "hub", tmp_path / "hub")
    image = np.random.default_rng(0).integers(0, 256, (40, 50), dtype=np.uint8)
    one, other = (load(path)(image, min_score=0.0) for path in (finished, tmp_path / "hub"))
    assert one.objects
    assert one.objects == other.objects
    with pytest.raises(PskdError, match=r"torch\.export cannot follow a network with any number of answers"):
        export(finished, "pt2", tmp_path / "model.pt2")
    assert not (tmp_path / "model.pt2").exists()


@pytest.mark.parametrize(
    "words", [("train.calibrate=true",), ("model.head=c4", "model.anchors=[12,24]", "model.min_score=0.99")]
)
def test_onnx_finds_the_same_objects(words: tuple[str, ...], trunk: Path, tmp_path: Path) -> None:
    """Also where nothing is found, which is what the second detector does."""
    import onnxruntime

    from pskd.workbench.api import export

    run, out = tmp_path / "run", tmp_path / "model.onnx"
    train(tiny(trunk, "data.val_images=3", "epochs=1", *words), run)
    calibrated = "train.calibrate=true" in words
    line = export(run, "onnx", out, calibrated=calibrated, preprocessing=True)
    assert re.search(
        r"one image of any size; boxes differ by at most \S+, labels .* 0, scores .* on \d+ test images", line
    )
    session = onnxruntime.InferenceSession(out.read_bytes(), providers=["CPUExecutionProvider"])
    about = session.get_modelmeta().custom_metadata_map
    detect = Predictor.from_run(run)
    assert json.loads(about["classes"]) == list(detect.classes)
    images = np.random.default_rng(0).integers(0, 256, (2, 48, 64, 1), dtype=np.uint8)
    temperatures = [1.0, *detect.calibration.temperatures.values()] if calibrated else None
    ours = DeployedDetector(detect.model, temperatures, pixels=True)
    for image in (*images, images[0, :32]):
        seen = Resize(*detect.about.resize).scale_image(torch.from_numpy(image).permute(2, 0, 1))
        names = ["boxes", "labels", "scores"]
        found = [torch.from_numpy(each) for each in session.run(names, {"image": seen.permute(1, 2, 0).numpy()})]
        with torch.no_grad():
            boxes, labels, scores = differences(found, ours(seen.permute(1, 2, 0)))
        assert bool(len(found[0])) == calibrated
        assert (boxes < 0.01, labels, scores < 1e-5) == (True, 0, True)


def test_differences_of_detections_are_those_of_the_nearest() -> None:
    boxes = torch.tensor([[0.0, 0, 9, 9], [5, 5, 20, 20], [0, 0, 9, 9]])
    answer = boxes, torch.tensor([1, 1, 2]), torch.tensor([0.9, 0.5, 0.4])
    swapped = [each[[1, 0, 2]] for each in answer]
    assert differences(swapped, answer) == [0, 0, 0]
    assert differences([each[:0] for each in answer], [each[:0] for each in answer]) == [0, 0, 0]
    assert differences([each[:0] for each in answer], answer) == [torch.inf] * 3
    assert differences([each[:2] for each in answer], answer)[1] == 1  # the third has no partner of its own label
    moved = boxes + torch.tensor([0.0, 0, 0, 0.5]), answer[1], answer[2] + 0.25
    assert differences(moved, answer) == pytest.approx([0.5, 0, 0.25])
