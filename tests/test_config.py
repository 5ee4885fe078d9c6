"""Settings: what is typed is what is meant, or the nearest one is named."""

from __future__ import annotations

import pytest

from pskd.errors import PskdError
from pskd.workbench.config import OptimConfig, differences, how, places, resolve, validated
from pskd.workbench.recipes import read_recipe

RECIPE = {"about": "x", "method": "ps_kd", "methods": {"ps_kd": {"alpha": 0.7}}, "epochs": 7, "optim": {"lr": 0.5}}


def test_overrides_stand_above_the_recipe() -> None:
    config = resolve(RECIPE, ["optim.lr=1e-3", "seed=3", "model=resnet20", "model.width=4", "method.alpha=0.2"])
    assert (config.optim.lr, config.train.seed, config.train.epochs) == (1e-3, 3, 7)
    assert (config.model.name, config.model.options) == ("resnet20", {"width": 4})
    assert config.method.name == "ps_kd"
    assert config.method.options["alpha"] == 0.2


def test_a_method_takes_its_constants_from_the_recipe() -> None:
    assert resolve(RECIPE).method.options["alpha"] == 0.7
    assert resolve({"methods": {"ps_kd": {"alpha": 0.3}}}, ["method=ps_kd"]).method.options["alpha"] == 0.3
    assert resolve(RECIPE, ["method=hard"]).method.name == "hard"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optim.lrr=1", "optim.lrr: unknown setting; did you mean optim.lr?"),
        ("lr=1", "lr: unknown setting; did you mean optim.lr?"),
        ("method.alpa=0.3", "method.alpa: unknown setting of ps_kd; did you mean method.alpha?"),
        ("zzz=3", "zzz: unknown setting; allowed are "),
        ("method=pskd", "method 'pskd' is unknown; did you mean ps_kd? allowed are "),
        ("method=", "method='' is not a name: write for example method=ps_kd"),
        ("method=3", "method '3' is unknown; allowed are "),
        ("method=[1]", "method '[1]' is unknown"),
        ("data=digit", "data 'digit' is unknown; did you mean digits?"),
        ("task=classify", "task 'classify' is unknown; did you mean classification?"),
        ("model=", "model='' is not a name"),
        ("data.rot=x", "data.rot: unknown setting; did you mean data.root?"),
        ("epochs=many", "train.epochs='many': input should be a valid integer"),
        ("epochs=0", "train.epochs=0: input should be greater than or equal to 1"),
        ("method.alpha=1.5", "method.alpha=1.5: input should be less than or equal to 1, or 'auto'"),
        ("train.save_every=3 weeks", "train.save_every='3 weeks': write auto, '1 epoch', '10 minutes'"),
        ("data.val_fraction=1", "data.val_fraction=1: input should be less than 1"),
        ("foo", "'foo' is not a setting: write key=value"),
        ("a=[", "a: '[' is not a valid value"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(override: str, message: str) -> None:
    with pytest.raises(PskdError) as caught:
        resolve(RECIPE, [override])
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_resolved_configuration_reads_back() -> None:
    import yaml

    config = resolve(RECIPE, ["model.width=4", "train.trackers=[tensorboard]"], name="x")
    assert validated(yaml.safe_load(config.to_yaml())) == config
    assert differences(config, config) == []
    assert differences(config, resolve(RECIPE, ["model.width=5", "train.trackers=[tensorboard]"], name="x")) == [
        "model.width: 4, 5"
    ]


def test_the_learning_rate_is_a_function_of_progress() -> None:
    steps = OptimConfig(milestones=(0.5, 225))
    assert [steps.factor(p, 300) for p in (0, 149.9, 150, 224, 225)] == pytest.approx([1, 1, 0.1, 0.1, 0.01])
    cosine = OptimConfig(schedule="cosine", warmup=10)
    assert cosine.factor(5, 110) == pytest.approx(0.5)
    assert [cosine.factor(p, 110) for p in (10, 60, 110)] == pytest.approx([1, 0.5, 0])
    cyclic = OptimConfig(schedule="cyclic", cycles=2, warmup=10)
    factors = [cyclic.factor(p, 110) for p in (5, 10, 35, 59.999, 60, 85)]
    assert factors == pytest.approx([0.5, 1, 0.5, 0, 1, 0.5], abs=1e-6)


def test_defaults_are_a_configuration() -> None:
    config = validated({})
    assert (config.task, config.method.name, config.data.name) == ("classification", "ps_kd", "digits")


def test_text_stays_text_where_text_is_wanted() -> None:
    translation = resolve({"task": "translation"}, ["data.source=no", "data.target=on", "data.root=2024"])
    assert (translation.data.source, translation.data.target) == ("no", "on")  # type: ignore[attr-defined]
    assert translation.data.root == "2024"
    assert resolve({}, ["data.root=null"]).data.root is None
    assert resolve({}, ["model.depth=20", "model.shakedrop=no"]).model.options == {"depth": 20, "shakedrop": False}


def test_each_task_has_its_own_default_method() -> None:
    assert resolve({"task": "detection"}).method.name == "hard"
    assert resolve({"task": "detection"}, ["scale=laptop"]).method.name == "hard"
    with pytest.raises(PskdError, match=r"method=ps_kd: a detector takes hard only; .* model.backbone=RUN"):
        resolve({"task": "detection"}, ["method=ps_kd"])
    with pytest.raises(PskdError, match="method=cs_kd: translation takes hard, label_smoothing, ps_kd"):
        resolve({"task": "translation"}, ["method=cs_kd"])
    with pytest.raises(PskdError, match=r"method.alpha: unknown setting of hard"):
        resolve(read_recipe("detection/digits"), ["method.alpha=0.5"])


def test_the_laptop_overlay_is_that_of_the_task_that_is_asked_for() -> None:
    assert resolve({}, ["task=translation", "scale=laptop"]).train.batch_size == 2048


def test_what_says_only_where_and_how_is_marked_on_its_field() -> None:
    config = resolve({}, ["method=tf_kd", "method.teacher=x"])
    assert how(config) >= {"data.download", "data.workers", "train.device", "train.threads", "train.save_every"}
    assert places(config) - how(config) == {"recipe", "data.root", "data.cache", "method.teacher"}
    assert "method.path" in places(resolve({}))
    assert "train.seed" not in places(config)


@pytest.mark.parametrize(
    "recipe",
    [{"methods": 3}, {"laptop": 3}, {"task": {}}, {"method": {"name": [1]}}, {"data": [1]}, {"train": 7}],
)
def test_sections_that_are_none_are_refused(recipe: dict[str, object]) -> None:
    with pytest.raises(PskdError) as caught:
        resolve(recipe)
    assert "\n" not in str(caught.value)
