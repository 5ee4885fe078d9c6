"""README.md and docs/: every block is run, here or in the test that is named here, and every command is one."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer.main
from helpers import SMALL, pskd
from pages import PAGES, ROOT, blocks, commands, texts
from PIL import Image

from pskd.workbench import recipes, registry
from pskd.workbench.cli import app
from pskd.workbench.config import resolve
from pskd.workbench.study.cells import expand, read_study
from pskd.workbench.study.ranges import parse

# Who runs the blocks of a page.
RUN_BY = {
    ("README.md", "bash"): "test_readme.py",
    ("README.md", "diff"): "test_readme.py",
    ("README.md", "py"): "integrations/test_docs.py",  # and test_sampler.py
    ("docs/deploy.md", "bash"): "test_deploy.py",
    ("docs/deploy.md", "python"): "test_deploy.py",
    ("docs/detection.md", "bash"): "test_pages.py",
    ("docs/extending.md", "bash"): "test_extending.py",
    ("docs/extending.md", "python"): "test_extending.py",
    ("docs/extending.md", "toml"): "test_pages.py",
    ("docs/extending.md", "yaml"): "test_extending.py",
    ("docs/fine-tuning.md", "bash"): "test_own_data.py",
    ("docs/integrations.md", "diff"): "integrations/test_timm.py",  # the same lines in examples/timm_train.py
    ("docs/integrations.md", "python"): "integrations/test_docs.py",
    ("docs/loop.md", "python"): "test_loop_page.py",
    ("docs/own-data.md", "bash"): "test_own_data.py",
    ("docs/python.md", "python"): "use/test_python.py",
    ("docs/reproducing.md", "bash"): "study/test_reproducing.py",  # read, not run: the paper's full settings
    ("docs/scaling.md", "bash"): "test_pages.py",
    ("docs/scaling.md", "py"): "test_sampler.py",
    ("docs/start.md", "bash"): "test_pages.py",
    ("docs/studies.md", "bash"): "test_pages.py",
    ("docs/studies.md", "yaml"): "test_pages.py",
    ("docs/translation.md", "bash"): "test_pages.py",
}
TINY_DETECTOR = ["data.workers=0", "epochs=1", "model.pyramid_width=8", "model.box_width=16", "model.rois=8"]


def test_every_block_has_a_test() -> None:
    there = {(page, language) for page in PAGES for language, _ in blocks(page)}
    assert there == set(RUN_BY)
    for (page, _), test in RUN_BY.items():
        text = (ROOT / "tests" / test).read_text()
        assert Path(page).name in text or test == "integrations/test_timm.py"


def test_no_block_and_no_line_is_passed_over() -> None:
    """Every fence begins or ends a block that is found, and what is not ours in a shell's block is known here."""
    for page in PAGES:
        fences = [line for line in (ROOT / page).read_text().splitlines() if line.lstrip().startswith(("```", "~~~"))]
        assert len(fences) == 2 * len(blocks(page)), page
    lines = [line for page in PAGES for text in texts(page, "bash") for line in text.splitlines()]
    words = [shlex.split(line, comments=True) for line in lines]
    assert {first for first, *_ in filter(None, words)} == {
        "pskd",
        "make",  # test_demo.py, and this very run
        "pip",  # extras are looked up below
        "python",  # test_deploy.py asks the server in the place of curl
        "curl",
        "torchrun",  # test_two_processes
        "export",  # study/test_queue.py has a database server of its own
    }


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)])
def test_every_command_is_one(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its options are there, its recipe too, and its settings are allowed."""
    monkeypatch.chdir(tmp_path)
    for words in commands(page):
        kind: Any = typer.main.get_command(app)
        names, rest = [], list(words)
        while hasattr(kind, "commands"):
            names.append(rest.pop(0))
            kind = kind.commands[names[-1]]
        given = kind.make_context(names[-1], rest).params
        settings = list(given.get("words") or [])
        if any(":" in word.partition("=")[2] and "my_" in word for word in settings) or "mine.yaml" in settings:
            continue  # names a file of the page's own, which its test writes
        if names == ["study", "run"]:
            assert expand(read_study(given["name"]), settings)
        elif names == ["tune"]:
            fixed = [word for word in settings if parse(word) is None]
            assert len(fixed) < len(settings)
            resolve(recipes.read_recipe(given["recipe"]), fixed)
        elif names == ["train"] and not given["resume"] and not settings[0].endswith(".yaml"):
            resolve(recipes.read_recipe(settings[0]), settings[1:])


def run(capfd: pytest.CaptureFixture[str], words: list[str], *more: str) -> str:
    code, out, err = pskd(capfd, *words, *more)
    assert code == 0, f"{words}: {err}"
    return out


def test_getting_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Image.new("L", (8, 8), 128).save("digit.png")
    found = commands("docs/start.md")
    assert [words[0] for words in found] == ["train", "train", "report", "evaluate", "predict"]
    for words in found:
        assert run(capfd, words, *(SMALL if words[0] == "train" else ()))
    assert Path("comparison.html").stat().st_size > 10_000
    for name in ("config.yaml", "metrics.jsonl", "result.json", "predictions.npz", "model.safetensors"):
        assert Path("runs/ps_kd", name).exists()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    installed = [words[-1] for words in commands("docs/start.md", "pip")]
    assert installed[0] == "."
    assert {word.removeprefix(".[").removesuffix("]") for word in installed[1:]} <= set(extras)


@pytest.mark.slow
def test_detection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """On images of one box each, a small trunk of random weights in the place of ResNet-50."""
    monkeypatch.chdir(tmp_path)
    write_scenes()
    found = commands("docs/detection.md")
    assert len(found) == 12
    for words in found:
        if words[:2] == ["train", "digits"]:
            run(capfd, words, *SMALL, "epochs=1")
        elif words[0] == "train":
            own = any(word.startswith("data.root=my/") for word in words)
            changed = [word for word in words if not own or not word.startswith(("model.backbone=", "model.weights="))]
            if not own and "detection/voc" in words:
                continue  # ImageNet's trunks on the published VOC: tests/study/test_shipped.py has them in small
            tiny = ["scale=laptop", "model.backbone=resnet8", "data.image_size=32", "model.rois=8"] if own else []
            counts = [] if own else ["data.train_images=6", "data.test_images=3"]
            run(capfd, changed, *tiny, *counts, *TINY_DETECTOR)
        else:
            assert run(capfd, words)
    assert list(Path("drawings").iterdir())
    assert json.loads(Path("runs/my-coco/result.json").read_text())["val"]


def write_scenes() -> None:
    """Twelve pictures with a box each, in VOC's layout and in COCO's, and pictures to predict for."""
    voc, coco = Path("my/voc"), Path("my/coco")
    for folder in (voc / "Annotations", voc / "JPEGImages", voc / "ImageSets/Main", coco / "images"):
        folder.mkdir(parents=True)
    names = [f"n{number}" for number in range(12)]
    for number, name in enumerate(names):
        picture = Image.new("RGB", (48, 32), "white")
        picture.paste((200, 20 * number, 0), (8, 8, 28, 28))
        picture.save(voc / "JPEGImages" / f"{name}.jpg")
        picture.save(coco / "images" / f"{name}.jpg")
        box = "<bndbox><xmin>9</xmin><ymin>9</ymin><xmax>28</xmax><ymax>28</ymax></bndbox>"
        text = f"<annotation><object><name>block</name>{box}</object></annotation>"
        (voc / "Annotations" / f"{name}.xml").write_text(text)
    picture.save("photo.jpg")
    Image.new("RGB", (96, 96)).save("scene.png")
    for split, part in {"train": names[:8], "val": names[8:10], "test": names[10:]}.items():
        (voc / "ImageSets/Main" / f"{split}.txt").write_text("\n".join(part))
        images = [{"id": names.index(name), "file_name": f"{name}.jpg", "width": 48, "height": 32} for name in part]
        boxes = [
            {"id": each["id"], "image_id": each["id"], "category_id": 1, "bbox": [8, 8, 20, 20]} for each in images
        ]
        tree = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "block"}]}
        (coco / f"{split}.json").write_text(json.dumps(tree))


@pytest.mark.slow
def test_translation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    tiny = [
        "epochs=1",
        "data.vocabulary=64",
        "model.layers=1",
        "model.width=16",
        "model.inner=16",
        "eval.beam=1",
        "data.pairs=40",
    ]
    Path("my/text").mkdir(parents=True)
    for name in ("train", "test", "val"):
        Path(f"my/text/{name}.de").write_text("eins zwei\ndrei vier\n" * 10)
        Path(f"my/text/{name}.en").write_text("one two\nthree four\n" * 10)
    Path("german.txt").write_text("siebzehn\nvier\n")
    found = commands("docs/translation.md")
    assert [words[0] for words in found] == ["train", "train", "evaluate", "predict", "predict", "recipes", "train"]
    for words in found:
        words = [word for word in words if word not in (">", "english.txt")]
        given = {"DIR": "data.root=my/text", "RUN": "runs/translation-numbers-ps_kd-0"}
        words = [given["DIR"] if word == "data.root=DIR" else given.get(word, word) for word in words]
        more = [*tiny, "model.heads=2"] if words[0] == "train" else []
        if "translation/multi30k-de-en" in words and words[0] == "train":
            more += ["data=files", "data.source=de", "data.target=en"]  # the layout of one's own text
        assert run(capfd, words, *more)


@pytest.mark.slow
def test_studies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Table 1 and ImageNet's search are read only: tests/study has them in small."""
    monkeypatch.chdir(tmp_path)
    small = ["data.per_class=4", "model.width=4", "epochs=1"]
    for words in commands("docs/studies.md"):
        if "runs/digits-study" in words:
            assert run(capfd, words, *([*small, "seed=0,1"] if words[1] == "run" else []))
        elif words[:2] == ["tune", "digits"]:
            assert run(capfd, words, *small, "--seeds", "1", "--out", "runs/search")
    assert Path("report.html").exists()
    assert list(Path("figures").iterdir())


def test_the_study_of_the_page_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (text,) = texts("docs/studies.md", "yaml")
    Path("mine.yaml").write_text(text)
    cells = expand(read_study("mine.yaml"))
    assert len([cell for cell in cells.values() if cell.labels]) == 9


def test_entry_points_of_the_page_are_known_groups() -> None:
    (text,) = texts("docs/extending.md", "toml")
    groups = set(tomllib.loads(text)["project"]["entry-points"])
    assert groups <= {registry.methods.group, registry.models.group, registry.data.group, registry.tasks.group}


@pytest.mark.slow
def test_two_processes(tmp_path: Path) -> None:
    """The line with two hosts is that of tests/train/test_distributed.py."""
    (two,) = [words for words in commands("docs/scaling.md", "torchrun") if "--nnodes" not in words]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *two, *SMALL], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "runs/two/result.json").read_text())["seed"] == 0
