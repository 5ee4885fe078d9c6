"""The settings of image classification."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from pskd.settings import How, Place
from pskd.workbench.config import base
from pskd.workbench.config.base import Count, Positive, Processes, Section, Share, Side
from pskd.workbench.config.run import Config


class DataConfig(base.DataConfig):
    """`name` is digits, cifar10, cifar100, fashion_mnist, imagenet, folder, npz, table or hf:NAME.

    `root` is its folder or file. `val_fraction` of the training set becomes the validation split. `image_size` in
    pixels is that of the model's input; images of one size can only be made smaller. `num_classes` and `per_class` keep
    the first classes and so many training images of each. `as_stored` does not turn photos upright by their EXIF tag.
    `noise` is the share of training labels that is replaced by another class, for studies; validation and test labels
    stay right. `balance` draws training samples so that all classes come up equally often. `workers` decode files.

    `cache` is a folder, or `auto` for one of this user's, in which decoded images are kept for all epochs and runs; it
    brings `shrink=auto` and `resize=torch` with it, unless they are said. `shrink` scales the shorter side of larger
    images to so many pixels before training crops are taken, `auto` to what evaluation does (256 for 224).
    `resize=torch` scales the crops three times as fast as Pillow does; values differ by a few of 255. What evaluation
    sees stays the same to the bit.
    """

    name: str = "digits"
    download: Annotated[bool, How()] = False
    val_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0
    image_size: Side | None = None
    num_classes: Annotated[int, Field(ge=2)] | None = None
    per_class: Count | None = None
    as_stored: bool = False
    noise: Annotated[float, Field(ge=0, lt=1)] = 0.0
    balance: bool = False
    workers: Annotated[Processes, How()] = 2
    cache: Annotated[str | None, Place(written=True)] = None
    shrink: Literal["auto"] | Side | None = None
    resize: Literal["pillow", "torch"] = "pillow"

    @model_validator(mode="before")
    @classmethod
    def _kept_small(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and values.get("cache") is not None:
            return {"shrink": "auto", "resize": "torch", **values}
        return values


class ModelConfig(base.ModelConfig):
    """`name` is one of `pskd.models.names()`, such as resnet20 or densenet121, or torchvision:NAME or timm:NAME.

    `start` is a run folder or a .safetensors file whose weights it begins with. Every other key is an option of that
    model, such as `model.width=32`, `model.weights=DEFAULT` (torchvision) or `model.pretrained=true` (timm).
    """

    name: str = "resnet8"
    start: str | None = None


class AugmentConfig(Section):
    """`crop=pad` pads by `pad` pixels and cuts the old size; `resized` is ImageNet's random area and ratio.

    `crop=random` takes 7/8 of either side, anywhere: 224 pixels out of 256. `clamp` keeps colours in their range after
    each change of the `jitter`; the authors' code does not.

    `auto=trivial` is TrivialAugment, one random operation on each image; `erase` the probability of a blank box.

    `mix` is Cutout with a square `hole`, or CutMix or Mixup with lambda ~ Beta(beta, beta), or either of these two for
    each batch. `box=released` makes the sides of CutMix's box even, as the authors' code does; `exact` keeps odd ones.
    `mix_probability` is that of mixing a batch, by default 0.5 for CutMix and 1 for the others; with PS-KD and CS-KD
    each sample is mixed with probability 0.5.
    """

    crop: Literal["pad", "resized", "random", "none"] = "pad"
    pad: Annotated[int, Field(ge=0, le=4096)] = 4
    flip: bool = True
    jitter: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    clamp: bool = True
    lighting: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    auto: Literal["none", "trivial"] = "none"
    erase: Share = 0.0
    mix: Literal["none", "cutout", "cutmix", "mixup", "mixup_cutmix"] = "none"
    hole: Side = 8
    beta: Positive = 1.0
    box: Literal["exact", "released"] = "exact"
    mix_probability: Share | None = None


class ClassificationConfig(Config):
    task: Literal["classification"] = "classification"
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    augment: AugmentConfig = AugmentConfig()
