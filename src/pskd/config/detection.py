"""The settings of object detection."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, field_validator

from pskd.config import base
from pskd.config.base import Count, EvalConfig, Section, Share
from pskd.config.methods import HardConfig
from pskd.config.run import Config


class DataConfig(base.DataConfig):
    """`name` is digits (scenes made by seed), voc, voc_folder (VOC's layout, own classes) or coco; `root` its folder.

    `train`, `val` and `test` list the published splits to take: 2007/trainval for voc, the name of a list in
    ImageSets/Main for voc_folder, FILE.json:FOLDER for coco. `train_images`, ... are how many to make (digits) or to
    keep. `classes` are a voc_folder's. Images are scaled to a shorter side of `image_size` pixels, the longer one at
    most `max_size`. `on_bad` says what happens to missing images, unknown classes and boxes that are wrong.
    """

    name: str = "digits"
    download: bool = False
    train: tuple[str, ...] = ()
    val: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    train_images: Count | None = None
    val_images: Count | None = None
    test_images: Count | None = None
    classes: tuple[str, ...] = ()
    image_size: Count = 600
    max_size: Count = 1000
    on_bad: Literal["refuse", "skip"] = "refuse"
    workers: Annotated[int, Field(ge=0)] = 2


class ModelConfig(base.ModelConfig):
    """`backbone` is the trunk: the folder of a finished classification run, or a model's name (resnet8,
    torchvision:resnet50), which starts at random or, if torchvision's, from `weights` (DEFAULT, IMAGENET1K_V1, ...).

    `head=fpn` pools from a pyramid over the stages from `finest_stride` on, `c4` from the last stage but one, with the
    last stage as box head. So many parts of the trunk are `frozen`: 1 the stem, 2 the first stage too. `statistics` are
    those of the trunk's batch norms. `anchors` are sides in pixels, by default taken from the strides. `rois` are the
    regions per image that the box head learns from. Detections below `min_score` are dropped.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: Literal["faster_rcnn"] = "faster_rcnn"
    backbone: str | None = None
    weights: str | None = None
    head: Literal["fpn", "c4"] = "fpn"
    frozen: Annotated[int, Field(ge=0)] = 0
    statistics: Literal["frozen", "trained"] = "frozen"
    finest_stride: Count = 4
    anchors: tuple[Count, ...] = ()
    rois: Count = 512
    pyramid_width: Count = 256
    box_width: Count = 1024
    min_score: Share = 0.05
    max_detections: Count = 100


class AugmentConfig(Section):
    """`sizes` are shorter sides in pixels of which each training image draws one; by default data.image_size."""

    flip: bool = True
    sizes: tuple[Count, ...] = ()


class DetectionConfig(Config):
    task: Literal["detection"] = "detection"
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    augment: AugmentConfig = AugmentConfig()
    method: HardConfig = HardConfig()
    eval: EvalConfig = EvalConfig(batch_size=8)

    @field_validator("method", mode="before")
    @classmethod
    def _only_hard(cls, value: Any) -> Any:
        name = value.get("name") if isinstance(value, dict) else getattr(value, "name", None)
        if name != "hard":
            raise ValueError("a detector takes hard only; other methods reach it through its trunk, model.backbone=RUN")
        return value
