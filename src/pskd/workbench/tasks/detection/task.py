"""What a batch, a loss and an evaluation of object detection are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from pskd.errors import PskdError
from pskd.methods.base import Loss, Method
from pskd.plan import Step
from pskd.workbench import models, registry
from pskd.workbench.augment.boxes import BoxAugment, Resize
from pskd.workbench.data import View
from pskd.workbench.data.folder import MEAN, STD
from pskd.workbench.models.detection import transferred
from pskd.workbench.runs.group import Group
from pskd.workbench.tasks.base import Evaluation, Task
from pskd.workbench.tasks.classification import ClassPredictor
from pskd.workbench.tasks.detection.predictor import (
    DetectionPredictor,
    detect_split,
    detection_metrics,
    detector_of,
    load_data,
    model_input,
)
from pskd.workbench.tasks.detection.settings import DetectionConfig, ModelConfig
from pskd.workbench.tasks.predictor import Predictor


class TrainingBatch(NamedTuple):
    """B images (C, H, W) in 0..1 of their own sizes, and each one's boxes and labels (1..K), as torchvision wants."""

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
        self.num_classes = len(self.data.classes)
        self.num_samples = self.num_rows = len(self.data.train)
        self.fingerprint = self.data.train.fingerprint
        self.has_validation = self.data.val is not None
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
        detector = detector_of(classifier, self._about)
        self.notes = (*self.data.notes, *transferred(classifier.state_dict(), detector, str(settings.backbone)))
        return detector

    def batches(self, plan: Sequence[Step], epoch: int, device: torch.device) -> Iterator[TrainingBatch]:
        parts = [part for step in plan for part in step.parts]
        workers = self.config.data.workers
        change = partial(self.augment, seed=self.config.train.seed, epoch=epoch)
        scenes = self.data.train.batches(parts, change, workers=workers)
        for batch in scenes:
            yield TrainingBatch(
                [model_input(scene.image, device) for scene in batch],
                [{"boxes": scene.boxes.to(device), "labels": scene.labels.to(device) + 1} for scene in batch],
            )

    def loss(self, model: nn.Module, batch: TrainingBatch, real: int, method: Method) -> tuple[Loss, None]:
        """torchvision's own, whose parts are means over the anchors and regions that it draws."""
        parts: dict[str, Tensor] = model(batch.images, batch.targets)
        return Loss(
            torch.stack(list(parts.values())).sum(), {name: part.detach() for name, part in parts.items()}
        ), None

    def evaluate(self, model: nn.Module, split: str, device: torch.device, group: Group) -> Evaluation:
        scenes = self.data.val if split == "val" else self.data.test
        assert scenes is not None
        objects, detections = detect_split(model, scenes, self.resize, self.config, device, group)
        predictions = {
            "names": np.array(scenes.names),
            "classes": np.array(self.data.classes),
            "fingerprint": np.array(scenes.fingerprint),
            **{f"object_{name}": values for name, values in objects._asdict().items()},
            **{f"detected_{name}": values for name, values in detections._asdict().items()},
        }
        return Evaluation(detection_metrics(objects, detections, len(scenes), self.data.classes), predictions)

    def metadata(self) -> dict[str, Any]:
        return self._about


def _backbone(settings: ModelConfig, channels: int) -> tuple[nn.Module, dict[str, Any], View]:
    """The classifier whose trunk is taken, what describes it, and how its images are normalised."""
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
        classes = 1000  # as many as torchvision's weights have; the layer is not taken over
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
