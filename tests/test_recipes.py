"""Every recipe is a configuration for every method, at full scale and on a laptop."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

from pskd.workbench import recipes
from pskd.workbench.config import Config, resolve
from pskd.workbench.data import published
from pskd.workbench.models import seq2seq
from pskd.workbench.registry import methods
from pskd.workbench.tasks.classification.predictor import load_data
from pskd.workbench.tasks.classification.task import build_untrained

TASK = {name: recipes.read_recipe(name).get("task", "classification") for name in recipes.names()}
# A detector learns from hard labels, a translator by what takes its logits in parts; classifiers take every method.
METHODS_OF = {"detection": ["hard"], "translation": ["hard", "label_smoothing", "ps_kd"]}


@pytest.mark.parametrize("name", recipes.names())
@pytest.mark.parametrize("scale", ["full", "laptop"])
def test_every_recipe_resolves_for_every_method(name: str, scale: str) -> None:
    for method in METHODS_OF.get(TASK[name], methods.names()):
        config = resolve(recipes.read_recipe(name), [f"method={method}", f"scale={scale}"], name=name)
        assert config.method.name == method
    assert recipes.find(name).read_text().startswith(f"# pskd train {name}")


@pytest.mark.parametrize("name", [name for name in recipes.names() if TASK[name] == "classification"])
@pytest.mark.parametrize("scale", ["full", "laptop"])
def test_every_recipe_has_a_model(name: str, scale: str) -> None:
    config = resolve(recipes.read_recipe(name), [f"scale={scale}"])
    with torch.device("meta"):
        if config.task == "translation":
            model = seq2seq.create(config.model.name, 10_000, **config.model.options)
        else:
            model = build_untrained(config.model, 10, 3)  # without a download
    if scale == "laptop":
        assert sum(parameter.numel() for parameter in model.parameters()) < 12e6


def test_constants_of_the_paper() -> None:
    def method(recipe: str, name: str) -> dict[str, object]:
        return resolve(recipes.read_recipe(recipe), [f"method={name}"]).method.model_dump()

    assert method("cifar100/preact_resnet18", "tf_kd")["temperature"] == 6
    assert method("cifar100/densenet121", "tf_kd")["alpha"] == 0.9
    assert method("cifar100/pyramidnet200", "tf_kd")["alpha"] == 0.95
    assert method("cifar100/resnext29_8x64d", "ps_kd")["alpha"] == 0.8
    assert method("translation/iwslt15-de-en", "ps_kd")["alpha"] == 0.7
    assert method("translation/multi30k-de-en", "ps_kd")["memory"] == "snapshot"
    assert method("imagenet/resnet152", "ps_kd")["memory"] == "snapshot"
    assert method("imagenet/resnet152", "ps_kd")["alpha"] == 0.3
    for name in ("imagenet/resnet152", "imagenet/resnet152_search"):
        published = {"variant": "reg", "released": False, "temperature": 40, "alpha": 0.1, "a": 0.95}
        assert published.items() <= method(name, "tf_kd").items()
    assert method("imagenet/resnet152", "cs_kd")["lam"] == 0.5


@pytest.mark.parametrize("name", [name for name in recipes.names() if TASK[name] == "classification"])
def test_elr_has_its_authors_constants_for_the_data(name: str) -> None:
    elr = resolve(recipes.read_recipe(name), ["method=elr"]).method.model_dump()
    assert (elr["beta"], elr["lam"]) == ((0.9, 7) if name.startswith("cifar100/") else (0.7, 3))


@pytest.mark.parametrize("name", [name for name in recipes.names() if name.startswith(("cifar100/", "imagenet/"))])
def test_images_are_changed_as_in_the_released_code(name: str) -> None:
    config, photos = resolve(recipes.read_recipe(name)), name.startswith("imagenet/")
    assert config.augment.box == "released"  # type: ignore[attr-defined]
    assert config.augment.clamp == (not photos)  # type: ignore[attr-defined]
    assert config.data.as_stored == photos  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", [name for name in recipes.names() if TASK[name] == "translation"])
def test_labels_of_translation_are_smoothed_over_all_words(name: str) -> None:
    smoothing = resolve(recipes.read_recipe(name), ["method=label_smoothing"]).method.model_dump()
    assert (smoothing["epsilon"], smoothing["others_only"]) == (0.1, False)
    assert "(paper) vocabulary" not in recipes.find(name).read_text() or "9521" in recipes.find(name).read_text()


def test_the_deviations_of_the_released_code() -> None:
    assert published.CIFAR10_STATISTICS == ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
    assert published.CIFAR100_STATISTICS == ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))


def test_the_schedule_of_the_paper() -> None:
    cifar: Config = resolve(recipes.read_recipe("cifar100/pyramidnet200"))
    assert [cifar.optim.lr * cifar.optim.factor(e, 300) for e in (0, 149, 150, 224, 225, 299)] == pytest.approx(
        [0.25, 0.25, 0.025, 0.025, 0.0025, 0.0025]
    )
    translation = resolve(recipes.read_recipe("translation/iwslt15-en-de"))
    per_epoch = 1000  # steps: 4 epochs of warm-up to 5e-4, then the inverse square root
    rates = [translation.optim.lr * translation.optim.factor(e, 150, per_epoch) for e in (2, 4, 16, 100)]
    assert rates == pytest.approx([2.5e-4, 5e-4, 2.5e-4, 1e-4])
    imagenet = resolve(recipes.read_recipe("imagenet/resnet152"))
    assert [imagenet.optim.factor(e, 90) for e in (29, 30, 59, 60)] == pytest.approx([1, 0.1, 0.1, 0.01])


def test_laptop_scale_is_under_what_the_user_asks_for() -> None:
    config = resolve(recipes.read_recipe("cifar100/densenet121"), ["scale=laptop", "epochs=2"])
    assert config.train.epochs == 2
    assert config.data.per_class == 100
    assert config.model.options == {"blocks": [2, 2, 2, 2], "growth": 12}
    other = resolve(recipes.read_recipe("cifar100/densenet121"), ["scale=laptop", "model=resnet8", "model.width=8"])
    assert (other.model.name, other.model.options) == ("resnet8", {"width": 8})


def test_laptop_scale_takes_what_there_is(tmp_path: Path) -> None:
    """A folder of two classes with three images each: fewer classes and fewer images than the overlay keeps."""
    for name in ("train/owl", "train/hen", "test/owl", "test/hen"):
        (tmp_path / name).mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (8, 8), (80 * number, 0, 0)).save(tmp_path / name / f"{number}.png")
    words = ["scale=laptop", f"data.root={tmp_path}", "data.image_size=8", "data.num_classes=20"]
    config = resolve(recipes.read_recipe("folder"), words)
    assert config.data.per_class == 100
    found = load_data(config)
    assert (len(found.classes), len(found.train)) == (2, 6)


def test_a_trunk_of_the_paper_is_what_its_recipe_trains() -> None:
    """The six trunks of Table 5 are runs of the ImageNet recipe, each with its command."""
    lines = recipes.find("detection/voc").read_text().splitlines()
    commands = [line.split("#")[1].split() for line in lines if line.startswith("#   pskd train ")]
    assert len(commands) == 6
    for _, _, recipe, *words in commands:
        settings = [word for word in words if "=" in word]
        assert resolve(recipes.read_recipe(recipe), settings).model.name == "torchvision:resnet152"


def test_the_list_is_grouped_by_table() -> None:
    lines = recipes.listing()
    assert lines.index("The paper's Table 1:") < lines.index("The paper's Table 2:")
    for name in recipes.names():
        assert any(name in line for line in lines)
