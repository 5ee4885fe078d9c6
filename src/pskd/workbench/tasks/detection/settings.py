"""The settings of object detection."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from pskd.settings import How, Place
from pskd.workbench.config import base
from pskd.workbench.config.base import Count, EvalConfig, Processes, Section, Share, Side
from pskd.workbench.config.run import Config


class DataConfig(base.DataConfig):
    """`name` is digits (scenes made by seed), voc, voc_folder (VOC's layout, own classes) or coco; `root` its folder.

    `train`, `val` and `test` list the published splits to take: 2007/trainval for voc, the name of a list in
    ImageSets/Main for voc_folder, FILE.json:FOLDER for coco. `train_images`, ... are how many to make (digits) or to
    keep. `classes` are a voc_folder's. Images are scaled to a shorter side of `image_size` pixels, the longer one at
    most `max_size`. `on_bad` says what happens to missing images, unknown classes and boxes that are wrong.
    """

    name: str = "digits"
    download: Annotated[bool, How()] = False
    train: tuple[str, ...] = ()
    val: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    train_images: Count | None = None
    val_images: Count | None = None
    test_images: Count | None = None
    classes: tuple[str, ...] = ()
    image_size: Side = 600
    max_size: Side = 1000
    on_bad: Literal["refuse", "skip"] = "refuse"
    workers: Annotated[Processes, How()] = 2


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
    backbone: Annotated[str | None, Place()] = None
    weights: str | None = None
    head: Literal["fpn", "c4"] = "fpn"
    frozen: Annotated[int, Field(ge=0)] = 0
    statistics: Literal["frozen", "trained"] = "frozen"
    finest_stride: Count = 4
    anchors: tuple[Side, ...] = ()
    rois: Count = 512
    pyramid_width: Count = 256
    box_width: Count = 1024
    min_score: Share = 0.05
    max_detections: Count = 100


class AugmentConfig(Section):
    """`sizes` are shorter sides in pixels of which each training image draws one; by default data.image_size."""

    flip: bool = True
    sizes: tuple[Side, ...] = ()


class DetectionConfig(Config):
    task: Literal["detection"] = "detection"
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    augment: AugmentConfig = AugmentConfig()
    eval: EvalConfig = EvalConfig(batch_size=8)
