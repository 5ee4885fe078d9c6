"""Settings: what is typed is what is meant, or the nearest one is named."""

from __future__ import annotations

import pytest
from pskd.config.classification import ClassificationConfig

from pskd.config import OptimConfig, PSKDConfig, differences, resolve, validated
from pskd.errors import PskdError

RECIPE = {"about": "x", "method": "ps_kd", "methods": {"ps_kd": {"alpha": 0.7}}, "epochs": 7, "optim": {"lr": 0.5}}


def test_overrides_stand_above_the_recipe() -> None:
    config = resolve(RECIPE, ["optim.lr=1e-3", "seed=3", "model=resnet20", "model.width=4", "method.alpha=0.2"])
    assert (config.optim.lr, config.train.seed, config.train.epochs) == (1e-3, 3, 7)
    assert (config.model.name, config.model.options) == ("resnet20", {"width": 4})
    assert isinstance(config.method, PSKDConfig)
    assert config.method.alpha == 0.2


def test_a_method_takes_its_constants_from_the_recipe() -> None:
    assert resolve(RECIPE).method == PSKDConfig(alpha=0.7)
    assert resolve({"methods": {"ps_kd": {"alpha": 0.3}}}, ["method=ps_kd"]).method == PSKDConfig(alpha=0.3)
    assert resolve(RECIPE, ["method=hard"]).method.name == "hard"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optim.lrr=1", "optim.lrr: unknown setting; did you mean optim.lr?"),
        ("lr=1", "lr: unknown setting; did you mean optim.lr?"),
        ("method.alpa=0.3", "method.alpa: unknown setting of ps_kd; did you mean method.alpha?"),
        ("zzz=3", "zzz: unknown setting; allowed are "),
        ("method=pskd", "method: 'pskd' is not a method; allowed are hard"),
        ("epochs=many", "train.epochs='many': input should be a valid integer"),
        ("epochs=0", "train.epochs=0: input should be greater than or equal to 1"),
        ("method.alpha=1.5", "method.alpha=1.5: input should be less than or equal to 1"),
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


def test_defaults_are_a_configuration() -> None:
    assert validated({}) == ClassificationConfig()
