"""Settings: what is typed is what is meant, or the nearest one is named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pskd.errors import PskdError
from pskd.workbench.config import (
    MethodConfig,
    OptimConfig,
    changed,
    describe,
    differences,
    places,
    read_yaml,
    resolve,
    validated,
    written,
)
from pskd.workbench.config.methods import build_memory, method_settings
from pskd.workbench.recipes import read_recipe
from pskd.workbench.registry import methods

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
        ("epochs=many", "train.epochs='many': must be a whole number"),
        ("epochs=1.5", "train.epochs=1.5: must be a whole number"),
        ("epochs=true", "train.epochs=True: must be a number, not true or false"),
        ("epochs=0", "train.epochs=0: must be at least 1"),
        ("epochs=3000000000", "train.epochs=3000000000: must be less than 2147483648"),
        ("optim.lr=x", "optim.lr='x': must be a number"),
        ("optim.betas=[0.9,2]", "optim.betas.1=2: must lie in [0, 1]"),
        ("optim.betas=[0.9]", "optim.betas.1: is missing"),
        ("optim.lr=.nan", "optim.lr=nan: must be a finite number"),
        ("train.compile=7", "train.compile=7: must be true or false"),
        ("train=7", "train=7: must hold settings as 'key: value' lines"),
        ("train.accumulate=1000", "train: accumulate=1000 parts of a batch_size of 128: take fewer"),
        ("train.trackers=[mlfow]", "train.trackers.0='mlfow': must be 'tensorboard', 'wandb' or 'mlflow'"),
        ("model.width={a: 1}", "model.width={'a': 1}: must be a number, a word, true, false, or a list of these"),
        ("method.alpha=1.5", "method.alpha=1.5: must lie in [0, 1], or 'auto'"),
        ("data.shrink=0", "data.shrink=0: must be 'auto', or lie in [1, 16384]"),
        ("train.save_every=3 weeks", "train.save_every='3 weeks': write auto, '1 epoch', '10 minutes'"),
        ("data.val_fraction=1", "data.val_fraction=1: must lie in [0, 1)"),
        ("foo", "'foo' is not a setting: write key=value"),
        ("a=[", "a: '[' is not a valid value"),
        ("a=\x1b", "a: '\\x1b' is not a valid value"),
    ],
)
def test_a_wrong_setting_is_refused_in_one_line(override: str, message: str) -> None:
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
    assert places(config) >= {"data.download", "data.workers", "train.device", "train.threads", "train.save_every"}
    assert places(config) >= {"recipe", "data.root", "data.cache", "method.teacher"}
    assert {"train.seed", "data.name", "method.alpha"}.isdisjoint(places(config))
    assert written(config) == {"data.cache"}
    assert written(resolve({})) == {"data.cache", "method.path"}


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ({"methods": 3}, "methods: expected settings as 'key: value' lines, got 3"),
        ({"laptop": 3}, "laptop: expected settings as 'key: value' lines, got 3"),
        ({"task": {}}, "task={} is not a name: write for example task=classification"),
        ({"method": {"name": [1]}}, "method=[1] is not a name: write for example method=ps_kd"),
        ({"data": [1]}, "data=[1] is not a name: write for example data=digits"),
        ({"train": 7}, "train=7: must hold settings as 'key: value' lines"),
        ({"optim": {"lr": {}}}, "optim.lr={}: must be a number"),
        ({"epochs": {"a": 1}}, "train.epochs={'a': 1}: must be a whole number"),
        ({1: {2: 3}}, "1: unknown setting; allowed are "),
    ],
)
def test_what_is_no_section_is_refused(recipe: dict[str, object], message: str) -> None:
    with pytest.raises(PskdError, match=re.escape(message)) as caught:
        resolve(recipe)
    assert "\n" not in str(caught.value)


def test_a_yaml_file_that_cannot_be_read_is_refused_in_one_line(tmp_path: Path) -> None:
    for text, message in (
        ("a: \x1b", "not valid YAML (unacceptable character #x001b: control characters are not allowed in"),
        ("a: 1\nb: [", "line 3: not valid YAML (did not find expected node content)"),
        ("- 1", "expected settings as 'key: value' lines, got list"),
        ("1: 2", "the setting 1 is not a name"),
    ):
        (tmp_path / "x.yaml").write_text(text)
        with pytest.raises(PskdError, match=rf"x\.yaml.*{re.escape(message)}") as caught:
            read_yaml(tmp_path / "x.yaml")
        assert "\n" not in str(caught.value)


def test_a_section_can_be_given_as_a_whole() -> None:
    config = resolve({"optim": {}, **RECIPE}, ['method={"name": "cs_kd", "lam": 2}', "data={root: here}", "model={}"])
    assert (config.method.name, config.method.options["lam"], config.data.root) == ("cs_kd", 2, "here")
    assert (config.optim.lr, config.model.name) == (0.5, "resnet8")
    assert changed(config, ["epochs=9", "method.lam=3"]).method.options["lam"] == 3
    with pytest.raises(PskdError, match=r"train=3 is not a section of settings, so train.epochs cannot be set"):
        resolve({"train": {}, "epochs": 2}, ["train=3"])
    with pytest.raises(PskdError, match=re.escape("optim.lr=0.5 is not a section of settings, so optim.lr.x cannot")):
        changed(config, ["optim.lr.x=1"])


def test_settings_of_earlier_versions_have_their_new_names() -> None:
    old = {"method": {"name": "cs_kd", "weight": 2.0, "class_weight": "balanced"}}
    for config in (validated(old), resolve(old)):
        assert (config.method.options["lam"], config.method.weight) == (2, "balanced")
    assert resolve({}, ['method={"name": "cs_kd", "weight": 2}']).method.options["lam"] == 2
    with pytest.raises(PskdError, match=r"method.class_weight is called method.weight now: method.weight=balanced"):
        resolve({}, ["method.class_weight=balanced"])
    with pytest.raises(PskdError, match=r"CS-KD's factor is method.lam now: method.lam=0.5"):
        resolve({}, ["method.weight=0.5"])


def test_every_setting_is_listed_and_described() -> None:
    lines = describe()
    for line in (
        "  optim.lr=0.1  (must be a positive number)",
        "  method.weight=  (balanced)",
        "  method.alpha=0.8  (must lie in [0, 1], or auto)",
        "  data.shrink=  (auto, or must lie in [1, 16384])",
        "  train.patience=  (must be at least 1)",
        "  augment.flip=True  (true, false)",
        "        momentum: of a bank: a record becomes momentum * record + (1 - momentum) * prediction. The paper: 0.",
    ):
        assert lines.count(line) > 0, line
    for name in methods.names():
        method = methods.find(name)
        described = f"{method.__doc__}{build_memory.__doc__}{MethodConfig.__doc__}"
        for setting in method_settings(method):
            assert re.search(rf"^ +(\w+, )*{setting}(, \w+)*: |`{setting}`", described, re.MULTILINE), (name, setting)
            assert any(line.startswith(f"  method.{setting}=") for line in lines)
