"""Models in other programs' formats give the answers of the run, and a hostile folder cannot make one run code."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import pskd
from safetensors.torch import load_file, save_file

from pskd import load
from pskd.errors import PskdError
from pskd.workbench.api import export
from pskd.workbench.config import resolve
from pskd.workbench.recipes import read_recipe
from pskd.workbench.report.card import escape
from pskd.workbench.runs import weights
from pskd.workbench.tasks.classification.deployment import Effect
from pskd.workbench.train.loop import train

NASTY = "<script>alert(1)</script>\n---\n[x](javascript:alert(1)) `a` | ![i](http://evil/i.png) www.evil.com {{7*7}}"
IMAGES = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 1), dtype=np.uint8)


def own_probabilities(run: Path, temperature: float) -> torch.Tensor:
    classify = load(run)
    with torch.no_grad():
        return (classify.model(torch.stack(list(map(classify.preprocess, IMAGES)))) / temperature).softmax(1)


def test_onnx_gives_equal_answers(trained: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    import onnxruntime

    out = tmp_path / "model.onnx"
    words = ("export", str(trained), "--format", "onnx", "--out", str(out), "--calibrated", "--with-preprocessing")
    code, line, err = pskd(capfd, *words)
    assert (code, err) == (0, "")
    assert re.search(r"ONNX, opset 20, any batch size; probabilities differ by at most \S+ on 16 test images", line)
    session = onnxruntime.InferenceSession(out.read_bytes(), providers=["CPUExecutionProvider"])
    about = session.get_modelmeta().custom_metadata_map
    assert json.loads(about["classes"]) == list(load(trained).classes)
    expected = own_probabilities(trained, float(about["temperature"]))
    assert session.get_inputs()[0].shape[0] == session.get_outputs()[0].shape[0] == "batch"
    for batch in (IMAGES, IMAGES[:1]):
        (found,) = session.run(["probabilities"], {"image": batch})
        assert np.abs(found - expected[: len(batch)].numpy()).max() < 1e-5
    code, _, err = pskd(capfd, *words)
    assert code == 2
    assert "exists already" in err


def test_torch_export_gives_equal_answers(trained: Path, tmp_path: Path) -> None:
    line = export(trained, "pt2", tmp_path / "model.pt2")
    assert "torch.export, any batch size" in line
    extra = {"pskd.json": ""}
    program = torch.export.load(tmp_path / "model.pt2", extra_files=extra)
    view = load(trained).view  # type: ignore[attr-defined]
    found = program.module()(view.normalize(torch.from_numpy(IMAGES).permute(0, 3, 1, 2))).detach()
    assert float((found - own_probabilities(trained, 1.0)).abs().max()) < 1e-5
    assert json.loads(extra["pskd.json"])["temperature"] == 1.0


def test_an_export_that_answers_otherwise_is_not_written(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pskd.workbench.use import export as exporting

    wrong = (exporting.FORMATS["pt2"][0], lambda *_: lambda image: [torch.full((len(image), 10), 0.1)], "pt2")
    monkeypatch.setitem(exporting.FORMATS, "pt2", wrong)
    with pytest.raises(PskdError, match=r"gives other probabilities, by up to .*: nothing was written"):
        export(trained, "pt2", tmp_path / "model.pt2")
    assert list(tmp_path.iterdir()) == []


def test_a_hub_folder_is_whole_and_says_what_it_is(trained: Path, tmp_path: Path) -> None:
    export(trained, "hub", tmp_path / "hub")
    names = sorted(path.name for path in (tmp_path / "hub").iterdir())
    assert names == ["README.md", "calibration.json", "config.json", "model.safetensors", "reliability.png"]
    one, other = load(trained), load(tmp_path / "hub")
    assert one(IMAGES[0]).to_dict() == other(IMAGES[0]).to_dict()
    assert other(IMAGES[0], coverage=0.9).set
    card = (tmp_path / "hub" / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: pskd\n")
    effect: Effect = one.calibration.effect["test"]
    assert f"| NLL, test | {effect.before['nll']:.4f} | {effect.after['nll']:.4f} |" in card
    for word in ("Self-Knowledge Distillation with Progressive Refinement", "## Intended use", "10 classes: 0, 1,"):
        assert word in card
    assert "![Accuracy by confidence of" in card
    assert str(trained.parent) not in card


def test_timm_loads_a_hub_folder(tmp_path: Path) -> None:
    import timm

    words = ("model=timm:test_resnet", "data.per_class=4", "epochs=1", "model.drop_rate=0.1")
    config = resolve(read_recipe("digits"), [*words, "train.threads=1"], name="digits")
    train(config, tmp_path / "run")
    export(tmp_path / "run", "hub", tmp_path / "hub")
    model = timm.create_model(f"local-dir:{tmp_path / 'hub'}", pretrained=True).eval()
    classify = load(tmp_path / "run")
    inputs = torch.stack(list(map(classify.preprocess, IMAGES)))
    with torch.no_grad():
        assert torch.equal(model(inputs), classify.model(inputs))
    assert model.pretrained_cfg["mean"] == list(classify.view.mean)  # type: ignore[attr-defined]
    assert "library_name: timm" in (tmp_path / "hub" / "README.md").read_text()


def test_what_cannot_be_exported_is_said_in_a_line(
    copied: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (copied / "calibration.json").unlink()
    for words, message in (
        (("onnx", "--calibrated"), "is not calibrated: pskd calibrate"),
        (("torchscript",), "--format torchscript is unknown; allowed are onnx, pt2, hub"),
        (("hub", "--calibrated"), "are for onnx and pt2"),
    ):
        code, _, err = pskd(capfd, "export", str(copied), "--out", str(tmp_path / "out"), "--format", *words)
        assert code == 2
        assert message in err
        assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()
    (copied / "result.json").unlink()
    with pytest.raises(PskdError, match="is not finished"):
        export(copied, "hub", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["copied"]


def hostile(run: Path, **changes: object) -> None:
    """Rewrite what a folder says beside its weights."""
    path = run / "model.safetensors"
    about = {**weights.metadata(path), **changes}
    tensors = load_file(path)
    save_file(tensors, path, metadata={"pskd": json.dumps(about)})
    (run / "calibration.json").unlink(missing_ok=True)


def test_words_of_a_stranger_stay_words_in_the_card(copied: Path, tmp_path: Path) -> None:
    hostile(copied, classes=[NASTY, *"123456789"])
    result = json.loads((copied / "result.json").read_text())
    result |= {"versions": {NASTY: NASTY}, "data_fingerprint": NASTY, "git": NASTY, NASTY: 0.5}
    (copied / "result.json").write_text(json.dumps(result))
    export(copied, "hub", tmp_path / "hub")
    card = (tmp_path / "hub" / "README.md").read_text()
    assert "alert(1)" in card
    for word in ("<script", "`a`", "http://evil", "www.evil", "\n---\n["):
        assert word not in card
    assert re.findall(r"(?<!\\)\]\(", card) == ["]("]  # of the figure
    assert card.count("\n---\n") == 1  # the end of the front matter
    for line in card.splitlines():
        if line.startswith("|"):
            assert line.count("|") - line.count("\\|") in (3, 4)
    assert json.loads((tmp_path / "hub" / "config.json").read_text())["label_names"][0] == NASTY


def test_escaped_words_are_themselves_again_once_rendered() -> None:
    import html

    rendered = re.sub(r"\\([\\|*_`<>\[\]])", r"\1", html.unescape(escape(NASTY)))
    assert rendered == NASTY.replace("\n", "\\n")


@pytest.mark.parametrize("form", ["onnx", "pt2", "hub"])
def test_a_folder_that_names_code_or_files_is_not_believed(
    form: str, copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil_model.py").write_text("open('run', 'w').close()\n")
    for model, message in (
        ({"name": "evil_model:net"}, "names code"),
        ({"name": "timm:test_resnet", "checkpoint_path": "evil.pth"}, "may not name what a model loads"),
        ({"name": "timm:test_resnet", "pretrained_cfg": "local-dir:evil"}, "may not name what a model loads"),
        ({"name": "timm:hf-hub:evil/evil"}, "is unknown"),
    ):
        hostile(copied, model=model)
        for use in (lambda: export(copied, form, tmp_path / "out"), lambda: load(copied)):
            with pytest.raises(PskdError, match=message):
                use()
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "out").exists()


def test_links_are_not_followed(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("keep")
    (tmp_path / "out").symlink_to(tmp_path / "mine")
    for form in ("pt2", "hub"):
        with pytest.raises(PskdError, match="exists already"):
            export(trained, form, tmp_path / "out")
    (tmp_path / ".hub.writing").symlink_to(tmp_path / "mine")
    export(trained, "hub", tmp_path / "hub")
    assert (tmp_path / "mine").read_text() == "keep"
    shutil.rmtree(tmp_path / "hub")
