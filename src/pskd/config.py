"""Every setting, its type and default; how a recipe and `key=value` overrides become one resolved configuration."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from pskd.errors import PskdError
from pskd.recipes import laptop_overlay

Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]

TOP_LEVEL_SHORTS = {"epochs": "train", "seed": "train", "batch_size": "train"}
NAMED_SECTIONS = ("data", "model", "method")


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class DataConfig(Section):
    """`name` is digits, cifar10, cifar100, fashion_mnist, imagenet, folder or npz; `root` its folder or file.

    `val_fraction` of the training set becomes the validation split. `image_size` in pixels is for image files.
    `num_classes` and `per_class` keep the first classes and so many training images of each. `workers` decode files.
    """

    name: str = "digits"
    root: str | None = None
    download: bool = False
    val_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0
    image_size: Count | None = None
    num_classes: Annotated[int, Field(ge=2)] | None = None
    per_class: Count | None = None
    workers: Annotated[int, Field(ge=0)] = 2


class ModelConfig(Section):
    """`name` is one of `pskd.models.names()`, such as resnet20 or densenet121, or torchvision:NAME or timm:NAME.

    Every other key is an option of that model, such as `model.width=32`.
    """

    model_config = ConfigDict(frozen=True, extra="allow")
    name: str = "resnet8"

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class HardConfig(Section):
    name: Literal["hard"] = "hard"


class LabelSmoothingConfig(Section):
    """`others_only` is fairseq's variant: the label gives its share to the other classes only."""

    name: Literal["label_smoothing"] = "label_smoothing"
    epsilon: Annotated[float, Field(ge=0, lt=1)] = 0.1
    others_only: bool = False


class CSKDConfig(Section):
    name: Literal["cs_kd"] = "cs_kd"
    temperature: Positive = 4.0
    weight: NotNegative = 1.0


class TFKDConfig(Section):
    """`teacher` is a finished run's folder, for `variant=self`; `a` and `released` belong to `variant=reg`."""

    name: Literal["tf_kd"] = "tf_kd"
    variant: Literal["self", "reg"] = "self"
    teacher: str | None = None
    temperature: Positive | None = None
    alpha: Share | None = None
    multiplier: Positive = 1.0
    a: Annotated[float, Field(gt=0, lt=1)] = 0.95
    released: bool = False


class PSKDConfig(Section):
    """`alpha` is alpha_T. `form`, `k`, `dtype`, `path` are the bank's, `refresh` (epochs) is the snapshot's."""

    name: Literal["ps_kd"] = "ps_kd"
    alpha: Share = 0.8
    schedule: Literal["linear", "step", "exponential", "cosine", "constant"] = "linear"
    memory: Literal["bank", "snapshot"] = "bank"
    form: Literal["auto", "dense", "topk"] = "auto"
    k: Count = 32
    dtype: Literal["float16", "bfloat16", "float32", "float64"] = "float16"
    path: str | None = None
    refresh: Positive = 1.0


MethodConfig = Annotated[
    Union[HardConfig, LabelSmoothingConfig, CSKDConfig, TFKDConfig, PSKDConfig],  # noqa: UP007
    Field(discriminator="name"),
]
METHODS: dict[str, type[Section]] = {
    kind.model_fields["name"].default: kind for kind in get_args(get_args(MethodConfig)[0])
}


class AugmentConfig(Section):
    """`crop=pad` pads by `pad` pixels and cuts the old size; `resized` is ImageNet's random area and ratio.

    `mix` is Cutout with a square `hole`, or CutMix or Mixup with lambda ~ Beta(beta, beta). `mix_probability` is that
    of mixing a batch, by default 0.5 for CutMix and 1 for the others; with PS-KD and CS-KD each sample is mixed with
    probability 0.5.
    """

    crop: Literal["pad", "resized", "none"] = "pad"
    pad: Annotated[int, Field(ge=0)] = 4
    flip: bool = True
    jitter: NotNegative = 0.0
    lighting: NotNegative = 0.0
    mix: Literal["none", "cutout", "cutmix", "mixup"] = "none"
    hole: Count = 8
    beta: Positive = 1.0
    mix_probability: Share | None = None


class OptimConfig(Section):
    """`milestones` and `warmup` are epochs; a number below 1 is a share of all epochs."""

    name: Literal["sgd", "adamw"] = "sgd"
    lr: Positive = 0.1
    momentum: Share = 0.9
    nesterov: bool = True
    betas: tuple[Share, Share] = (0.9, 0.999)
    weight_decay: NotNegative = 5e-4
    schedule: Literal["multistep", "cosine", "constant"] = "multistep"
    milestones: tuple[NotNegative, ...] = (0.5, 0.75)
    gamma: Share = 0.1
    warmup: NotNegative = 0.0

    def factor(self, progress: float, epochs: int) -> float:
        """What the learning rate is multiplied by at ``progress`` epochs: a function, so a resume needs no state."""
        warmup = _epochs(self.warmup, epochs)
        if progress < warmup:
            return (progress + 1e-8) / warmup
        if self.schedule == "cosine":
            return (1 + math.cos(math.pi * (progress - warmup) / max(1e-8, epochs - warmup))) / 2
        if self.schedule == "multistep":
            return self.gamma ** sum(progress >= _epochs(m, epochs) for m in self.milestones)
        return 1.0


class Interval(NamedTuple):
    number: float
    unit: str


class TrainConfig(Section):
    """`batch_size` is the samples of one optimizer step over all processes; `accumulate` cuts it into parts.

    `threads` are the CPU threads of a process, by default torch's choice. One is best for tiny models, and on a machine
    that others use: threads wait for each other in every operation.
    """

    epochs: Count = 300
    batch_size: Count = 128
    seed: Annotated[int, Field(ge=0)] = 0
    device: str = "auto"
    threads: Count | None = None
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    accumulate: Count = 1
    clip_norm: Positive | None = None
    channels_last: bool = True
    compile: bool = False
    save_every: str = "2 minutes"
    keep_last: Count = 2
    trackers: tuple[Literal["tensorboard", "wandb", "mlflow"], ...] = ()

    @field_validator("save_every", mode="before")
    @classmethod
    def _save_every(cls, value: Any) -> str:
        interval = _interval(str(value))
        return f"{interval.number:g} {interval.unit}"

    @property
    def save_interval(self) -> Interval:
        return _interval(self.save_every)


class EvalConfig(Section):
    batch_size: Count = 512
    every: Count = 1
    ece_bins: Count = 10


class Config(Section):
    """One run, whole."""

    recipe: str | None = None
    scale: Literal["full", "laptop"] = "full"
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    method: MethodConfig = PSKDConfig()
    augment: AugmentConfig = AugmentConfig()
    optim: OptimConfig = OptimConfig()
    train: TrainConfig = TrainConfig()
    eval: EvalConfig = EvalConfig()

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)


def resolve(recipe: Mapping[str, Any], overrides: Iterable[str] = (), *, name: str | None = None) -> Config:
    """A recipe's settings with `key.sub=value` overrides on top.

    A recipe may hold a section `methods` with each method's constants for its model: those of the chosen one are taken.
    `scale=laptop` puts the common overlay and the recipe's section `laptop` between the two.
    """
    tree: dict[str, Any] = {}
    recipe = {key: value for key, value in recipe.items() if key not in ("about", "tables")}
    constants, laptop = recipe.pop("methods", None) or {}, recipe.pop("laptop", None) or {}
    _merge(tree, {"recipe": name} if name else {})
    _merge(tree, _long_form(recipe))
    given: dict[str, Any] = {}
    for override in overrides:
        _merge(given, _override(override))
    if given.get("scale", tree.get("scale")) == "laptop":
        for changes in (_long_form(laptop_overlay()), _long_form(laptop)):
            if "model" in changes:
                tree["model"] = {}  # another model has other options
            _merge(tree, changes)
    chosen = given.get("method", {}).get("name") or tree.get("method", {}).get("name") or "ps_kd"
    if tree.get("method", {}).get("name", chosen) != chosen:
        tree["method"] = {}  # settings of the recipe's own method mean nothing to another one
    tree["method"] = {**constants.get(chosen, {}), **tree.get("method", {}), "name": chosen}
    _merge(tree, given)
    return validated(tree)


def validated(tree: Mapping[str, Any]) -> Config:
    """A configuration from plain data; what is wrong is said in one line."""
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise PskdError(_explain(error)) from None


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file that holds a mapping."""
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        where = getattr(error, "problem_mark", None)
        line = f", line {where.line + 1}" if where else ""
        raise PskdError(f"{path}{line}: not valid YAML ({getattr(error, 'problem', error)})") from None
    if not isinstance(tree, dict):
        raise PskdError(f"{path}: expected settings as 'key: value' lines, found {type(tree).__name__}")
    return tree


def differences(one: Config, other: Config) -> list[str]:
    """The settings in which two configurations differ, as `key: this, that`."""
    flat_one, flat_other = flat(one.model_dump(mode="json")), flat(other.model_dump(mode="json"))
    keys = [key for key in {**flat_one, **flat_other} if flat_one.get(key) != flat_other.get(key)]
    return [f"{key}: {flat_one.get(key)}, {flat_other.get(key)}" for key in keys]


def describe() -> list[str]:
    """Every setting with its default, section by section."""
    sections = [(name, field.annotation) for name, field in Config.model_fields.items() if name != "method"]
    sections += [(f"method={name}", kind) for name, kind in METHODS.items()]
    lines = [
        "epochs, seed and batch_size are short for train.epochs, ...; method=NAME for method.name=NAME, so data, model"
    ]
    for title, kind in sections:
        if not (isinstance(kind, type) and issubclass(kind, Section)):
            continue
        lines += ["", title, *(f"    {line.strip()}" for line in (kind.__doc__ or "").strip().splitlines() if line)]
        prefix = title.split("=")[0]
        for key, field in kind.model_fields.items():
            allowed = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
            choice = f"  ({', '.join(allowed)})" if len(allowed) > 1 else ""
            lines.append(f"  {prefix}.{key}={'' if field.default is None else field.default}{choice}")
    return lines


def _override(text: str) -> dict[str, Any]:
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise PskdError(f"{text!r} is not a setting: write key=value, for example optim.lr=0.05")
    try:
        parsed = yaml.safe_load(value) if value else None
    except yaml.YAMLError:
        raise PskdError(f"{key}: {value!r} is not a valid value") from None
    # YAML reads 1e-3 as text; people who train models do not.
    if isinstance(parsed, str) and re.fullmatch(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+", parsed):
        parsed = float(parsed)
    tree: Any = parsed
    for part in reversed(key.split(".")):
        tree = {part: tree}
    return _long_form(tree)


def _long_form(tree: Mapping[str, Any]) -> dict[str, Any]:
    """`method: ps_kd` as `method: {name: ps_kd}`, `epochs: 3` as `train: {epochs: 3}`."""
    long: dict[str, Any] = {}
    for key, value in tree.items():
        if key in TOP_LEVEL_SHORTS:
            _merge(long, {TOP_LEVEL_SHORTS[key]: {key: value}})
        elif key in NAMED_SECTIONS and isinstance(value, str):
            _merge(long, {key: {"name": value}})
        else:
            _merge(long, {key: value})
    return long


def _merge(into: dict[str, Any], tree: Mapping[str, Any]) -> None:
    for key, value in tree.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = dict(value) if isinstance(value, Mapping) else value


def flat(tree: Mapping[str, Any], separator: str = ".") -> dict[str, Any]:
    """A tree's leaves by their path: ``{"a": {"b": 1}}`` as ``{"a.b": 1}``."""
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            leaves.update({f"{key}{separator}{path}": leaf for path, leaf in flat(value, separator).items()})
        else:
            leaves[key] = value
    return leaves


def _explain(error: ValidationError) -> str:
    first, more = error.errors()[0], error.error_count() - 1
    path = [str(part) for part in first["loc"]]
    if path[:1] == ["method"] and len(path) > 2:
        del path[1]  # pydantic names the union's member; the user did not
    key = ".".join(path)
    if first["type"] == "extra_forbidden":
        prefix = ".".join([*path[:-1], ""])
        known = [prefix + name for name in _known_keys(path[:-1], first["loc"])]
        near = difflib.get_close_matches(key, known, 1, cutoff=0.75) or [
            full for full in _all_keys() if full != key and full.rsplit(".", 1)[-1] == path[-1]
        ]
        hint = f"did you mean {near[0]}?" if near else f"allowed are {', '.join(known)}"
        text = f"{key}: unknown setting{_of_method(first['loc'])}; {hint}"
    elif first["type"] == "union_tag_invalid":
        tag = str(first["ctx"]["tag"])
        near = difflib.get_close_matches(tag, METHODS, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        text = f"method: {tag!r} is not a method; allowed are {', '.join(METHODS)}{hint}"
    else:
        text = f"{key}={first['input']!r}: {first['msg'][0].lower()}{first['msg'][1:]}".replace("value error, ", "")
    return text + (f" (and {more} more)" if more else "")


def _of_method(location: tuple[int | str, ...]) -> str:
    return f" of {location[1]}" if location[0] == "method" else ""


def _known_keys(path: list[str], location: tuple[int | str, ...]) -> list[str]:
    if not path:
        return [*Config.model_fields, *TOP_LEVEL_SHORTS]
    if path[0] == "method":
        return list(METHODS[str(location[1])].model_fields)
    return list(Config.model_fields[path[0]].annotation.model_fields)  # type: ignore[union-attr]


def _all_keys() -> list[str]:
    return list(flat(Config().model_dump(mode="json")))


def _epochs(value: float, epochs: int) -> float:
    return value * epochs if value < 1 else value


def _interval(text: str) -> Interval:
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(epoch|minute|step)?s?\s*", text)
    if not match or float(match[1]) <= 0:
        raise ValueError("write a number of epochs, minutes or steps, such as '1 epoch', '10 minutes', '500 steps'")
    return Interval(float(match[1]), f"{match[2] or 'epoch'}s")
