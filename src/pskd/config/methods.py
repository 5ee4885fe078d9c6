"""The methods and their settings."""

from __future__ import annotations

from typing import Annotated, Literal, Union, get_args

from pydantic import Field

from pskd.config.base import Count, NotNegative, Positive, Section, Share


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
