"""Object detection: its settings, its batches and its loss."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from pskd.errors import PskdError
from pskd.methods.base import Loss, Method
from pskd.plan import Step
from pskd.settings import Count, How
from pskd.workbench import models, registry
from pskd.workbench.augment.boxes import BoxAugment, Resize
from pskd.workbench.config import base
from pskd.workbench.config.base import Config, EvalConfig, Processes, Section, Side
from pskd.workbench.data import View
from pskd.workbench.data.folder import MEAN, STD
from pskd.workbench.models.detection import compare_weights
from pskd.workbench.tasks.base import Task
from pskd.workbench.tasks.classification import ClassPredictor
from pskd.workbench.tasks.detection.predictor import (
    DetectionModelConfig,
    DetectionPredictor,
    build_detector,
    load_data,
    model_input,
)
from pskd.workbench.tasks.predictor import Predictor, splits_of


class DetectionDataConfig(base.DataConfig):
    """`name` is digits (scenes made by seed), voc, voc_folder (VOC's layout, own classes) or coco; `root` its folder.

    `train`, `val` and `test` list the published splits to take: 2007/trainval for voc, the name of a list in
    ImageSets/Main for voc_folder, FILE.json:FOLDER for coco. `train_images`, ... are how many to make (digits) or to
    keep. `classes` are those of a voc_folder. Images are scaled to a shorter side of `image_size` pixels, the longer
    one at most `max_size`. `on_bad` says what happens to missing images, unknown classes and wrong boxes.
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


class DetectionAugmentConfig(Section):
    """`sizes` are shorter sides in pixels. Each training image draws one of them; by default data.image_size."""

    flip: bool = True
    sizes: tuple[Side, ...] = ()


class DetectionConfig(Config):
    task: Literal["detection"] = "detection"
    data: DetectionDataConfig = DetectionDataConfig()
    model: DetectionModelConfig = DetectionModelConfig()
    augment: DetectionAugmentConfig = DetectionAugmentConfig()
    eval: EvalConfig = EvalConfig(batch_size=8)


class DetectionBatch(NamedTuple):
    """B images (C, H, W) in 0..1 of any sizes, and the boxes and labels (1..K) of each, in torchvision's form."""

    images: list[Tensor]
    targets: list[dict[str, Tensor]]


@registry.tasks.register("detection")
class Detection(Task):
    """Images in, boxes of K classes out."""

    Config = DetectionConfig
    Predictor = DetectionPredictor
    data_sets = registry.scenes
    default_method = "hard"
    unit = "img"
    selects_by = "map50"
    providers = {}  # noqa: RUF012  # torchvision's own loss needs nothing

    def __init__(self, config: DetectionConfig) -> None:
        self.config = config
        settings = config.data
        self.data = load_data(config)
        self.splits = splits_of(self.data)
        self.num_classes = len(self.data.classes)
        self.num_samples = self.num_rows = len(self.data.train)
        self.fingerprint = self.data.train.fingerprint
        self.notes = self.data.notes
        sizes = config.augment.sizes or (settings.image_size,)
        self.augment = BoxAugment(sizes, settings.max_size, config.augment.flip)
        self.resize = Resize(settings.image_size, settings.max_size)
        self._about: dict[str, Any] = {}

    @classmethod
    def refuses(cls, method: type[Method]) -> str | None:
        trunk = "a detector takes hard only; other methods reach it through its trunk, model.backbone=RUN"
        return None if method.card.plain else trunk

    def model(self) -> nn.Module:
        settings = self.config.model
        classifier, trunk, view = _backbone(settings, self.data.train.channels)
        self._about = {
            "task": self.config.task,
            "trunk": trunk,
            "model": settings.model_dump(mode="json"),
            "classes": list(self.data.classes),
            "view": view.to_dict(),
            "resize": [self.resize.shorter, self.resize.longest],
        }
        detector = build_detector(classifier, self._about)
        self.notes = (*self.data.notes, *compare_weights(classifier.state_dict(), detector, str(settings.backbone)))
        return detector

    def batches(
        self, plan: Sequence[Step], epoch: int, device: torch.device, needs: Collection[str] = ()
    ) -> Iterator[DetectionBatch]:
        parts = [part for step in plan for part in step.parts]
        change = partial(self.augment, seed=self.config.train.seed, epoch=epoch)
        for batch in self.data.train.batches(parts, change, workers=self.config.data.workers):
            yield DetectionBatch(
                [model_input(scene.image, device) for scene in batch],
                [{"boxes": scene.boxes.to(device), "labels": scene.labels.to(device) + 1} for scene in batch],
            )

    def loss(self, model: nn.Module, batch: DetectionBatch, real: int, method: Method) -> tuple[Loss, None]:
        """torchvision's own. Its parts are means over the anchors and regions that it draws."""
        parts: dict[str, Tensor] = model(batch.images, batch.targets)
        total = torch.stack(list(parts.values())).sum()
        return Loss(total, {name: part.detach() for name, part in parts.items()}), None

    def metadata(self) -> dict[str, Any]:
        return self._about


def _backbone(settings: DetectionModelConfig, channels: int) -> tuple[nn.Module, dict[str, Any], View]:
    """The classifier whose trunk is used, its description, and how its images are normalised."""
    name = settings.backbone
    if name is None:
        raise PskdError(
            "model.backbone is missing: name the folder of a classification run, or a model such as resnet8"
        )
    if not Path(name).is_dir():
        if "/" in name:
            raise PskdError(f"model.backbone={name}: there is no such run folder")
        options = {} if settings.weights is None else {"weights": settings.weights}
        if options and not name.startswith("torchvision:"):
            raise PskdError(f"model.weights={settings.weights} is for torchvision's models, not for {name}")
        classes = 1000  # of torchvision's weights; the last layer is not used
        classifier = models.create(name, classes, channels, **options)
        view = View(channels, (1, 1), None, MEAN[:channels], STD[:channels])
        return classifier, {"name": name, "classes": classes, "channels": channels}, view
    if settings.weights is not None:
        raise PskdError(f"model.weights={settings.weights} is for torchvision's models; {name} is a run with its own")
    trained = Predictor.from_run(Path(name), task="classification", device="cpu", calibrated=False)
    assert isinstance(trained, ClassPredictor)
    view = trained.view
    if view.channels != channels:
        raise PskdError(
            f"model.backbone={name} was trained on images of {view.channels} channels, these have {channels}"
        )
    trunk = {**trained.about.model, "classes": len(trained.classes), "channels": channels}
    return trained.model.train(), trunk, view
