"""Object detection: Faster R-CNN on the trunk of a classification run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from pskd import models
from pskd.augment.boxes import BoxAugment, Resize, scaled
from pskd.config.detection import DetectionConfig, ModelConfig
from pskd.data import View
from pskd.data import detection as data
from pskd.data.folder import MEAN, STD
from pskd.data.view import decode, pixels
from pskd.errors import PskdError
from pskd.methods.base import Loss, Method
from pskd.metrics.detection import Detections, Objects, coco_average_precision, voc_average_precision
from pskd.models.detection import Detector, faster_rcnn, takeover, trunk_of
from pskd.runs import devices, weights
from pskd.runs.files import kind_errors
from pskd.runs.folder import RunFolder
from pskd.runs.group import Group
from pskd.runs.plan import Step
from pskd.tasks import classification
from pskd.tasks.base import Answer, Evaluation, Task

READABLE = 400  # pixels of a drawing's longer side


class TrainingBatch(NamedTuple):
    """B images (C, H, W) in 0..1 of their own sizes, and each one's boxes and labels (1..K), as torchvision wants."""

    images: list[Tensor]
    targets: list[dict[str, Tensor]]


class Detection(Task):
    """Images in, boxes of K classes out."""

    unit = "img"
    selects_by = "map50"

    def __init__(self, config: DetectionConfig) -> None:
        self.config = config
        settings = config.data
        self.data = data.load(
            settings.name,
            splits={"train": settings.train, "val": settings.val, "test": settings.test},
            counts={"train": settings.train_images, "val": settings.val_images, "test": settings.test_images},
            root=settings.root,
            classes=settings.classes,
            download=settings.download,
            skip_bad=settings.on_bad == "skip",
            seed=config.train.seed,
        )
        self.num_classes = len(self.data.classes)
        self.num_samples = len(self.data.train)
        self.fingerprint = self.data.train.fingerprint
        self.has_validation = self.data.val is not None
        self.notes = self.data.notes
        sizes = config.augment.sizes or (settings.image_size,)
        self.augment = BoxAugment(sizes, settings.max_size, config.augment.flip)
        self.resize = Resize(settings.image_size, settings.max_size)
        self._about: dict[str, Any] = {}

    def model(self) -> nn.Module:
        settings = self.config.model
        classifier, trunk, view = _backbone(settings, self.data.train.channels)
        self._about = {
            "task": "detection",
            "trunk": trunk,
            "model": settings.model_dump(mode="json"),
            "classes": list(self.data.classes),
            "view": view.to_dict(),
            "resize": [self.resize.shorter, self.resize.longest],
        }
        detector = _detector(classifier, self._about)
        self.notes = (*self.data.notes, *takeover(classifier.state_dict(), detector, str(settings.backbone)))
        return detector

    def rebuilt(self, about: dict[str, Any]) -> nn.Module:
        return _rebuilt(about)

    def batches(self, plan: Sequence[Step], epoch: int, device: torch.device) -> Iterator[TrainingBatch]:
        parts = [part for step in plan for part in step.parts]
        workers = self.config.data.workers
        scenes = self.data.train.batches(parts, self.augment, seed=self.config.train.seed, epoch=epoch, workers=workers)
        for batch in scenes:
            yield TrainingBatch(
                [_input(scene.image, device) for scene in batch],
                [{"boxes": scene.boxes.to(device), "labels": scene.labels.to(device) + 1} for scene in batch],
            )

    def loss(self, model: nn.Module, batch: TrainingBatch, real: int, method: Method) -> Loss:
        """torchvision's own, whose parts are means over the anchors and regions that it draws."""
        parts: dict[str, Tensor] = model(batch.images, batch.targets)
        return Loss(torch.stack(list(parts.values())).sum(), parts)

    @torch.no_grad()
    def evaluate(self, model: nn.Module, split: str, device: torch.device, group: Group) -> Evaluation:
        scenes = self.data.val if split == "val" else self.data.test
        assert scenes is not None
        model.eval()
        share = group.share(len(scenes))
        batches = scenes.batches(
            torch.split(share, self.config.eval.batch_size), self.resize, workers=self.config.data.workers
        )
        limit = self.config.model.max_detections
        rows = torch.full((len(share), limit, 6), torch.nan)  # image after image: box, label, score
        answers = (answer for batch in batches for answer in _detected(model, [scene.image for scene in batch], device))
        for row, size, (seen, answer) in zip(rows, scenes.sizes[share].tolist(), answers, strict=True):
            boxes = scaled(answer["boxes"].cpu().float(), seen, size)
            columns = (boxes, answer["labels"].cpu()[:, None] - 1, answer["scores"].cpu()[:, None])
            row[: len(boxes)] = torch.cat(columns, 1)
        everything = group.gather(rows, len(scenes))
        found = everything[..., 5].isfinite()
        kept = everything[found].double().numpy()
        detections = Detections(found.nonzero()[:, 0].numpy(), kept[:, 4].astype(np.int64), kept[:, :4], kept[:, 5])
        objects = Objects(
            scenes.image_of_object.numpy(),
            scenes.labels.numpy(),
            scenes.boxes.double().numpy(),
            scenes.difficult.numpy(),
        )
        predictions = {
            "names": np.array(scenes.names),
            "classes": np.array(self.data.classes),
            "fingerprint": np.array(scenes.fingerprint),
            **{f"object_{name}": values for name, values in objects._asdict().items()},
            **{f"detected_{name}": values for name, values in detections._asdict().items()},
        }
        return Evaluation(_metrics(objects, detections, len(scenes), self.data.classes), predictions)

    def metadata(self) -> dict[str, Any]:
        return self._about


create = Detection


def _metrics(objects: Objects, detections: Detections, images: int, classes: Sequence[str]) -> dict[str, Any]:
    """All in 0..1. A class of which the split has no object has no AP."""
    voc = voc_average_precision(objects, detections, len(classes))
    coco = coco_average_precision(objects, detections, images, len(classes))

    def by_class(values: np.ndarray) -> dict[str, float]:
        return {name: float(value) for name, value in zip(classes, values, strict=True) if np.isfinite(value)}

    return {
        "map50": float(np.nanmean(voc.area)),
        "map50_11point": float(np.nanmean(voc.eleven_point)),
        "coco_ap": coco.ap,
        "coco_ap50": coco.ap50,
        "coco_ap75": coco.ap75,
        "ap_per_class": by_class(voc.area),
        "ap_per_class_11point": by_class(voc.eleven_point),
    }


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
    classifier, about = classification.restored(Path(name))
    view = View.from_dict(about["view"])
    if view.channels != channels:
        raise PskdError(
            f"model.backbone={name} was trained on images of {view.channels} channels, these have {channels}"
        )
    return classifier, {**about["model"], "classes": len(about["classes"]), "channels": channels}, view


def _detector(classifier: nn.Module, about: dict[str, Any]) -> Detector:
    options = {key: value for key, value in about["model"].items() if key not in ("name", "backbone", "weights")}
    trunk = trunk_of(classifier, f"{about['model']['backbone']} ({about['trunk']['name']})")
    view = View.from_dict(about["view"])
    return faster_rcnn(trunk, len(about["classes"]), mean=view.mean, std=view.std, **options)


def _rebuilt(about: dict[str, Any]) -> Detector:
    """The detector that ``metadata`` describes; its trunk's run may be gone."""
    options = dict(about["trunk"])
    name, classes, channels = (options.pop(key) for key in ("name", "classes", "channels"))
    return _detector(models.create(name, classes, channels, **options), about)


def _input(image: Tensor, device: torch.device) -> Tensor:
    return image.to(device, non_blocking=True).float().div_(255)


def _detected(
    model: nn.Module, images: list[Tensor], device: torch.device
) -> list[tuple[tuple[int, ...], dict[str, Tensor]]]:
    """The size (height, width) of each image as the model saw it, and what is on it, the likeliest first."""
    answers = model([_input(image, device) for image in images])
    return [(tuple(image.shape[1:]), answer) for image, answer in zip(images, answers, strict=True)]


class Found(Answer):
    """The objects on one image, and where they were drawn."""

    def __init__(self, image: str, objects: list[dict[str, Any]], drawing: Path) -> None:
        self.image, self.objects, self.drawing = image, objects, drawing

    def text(self) -> str:
        return json.dumps(self.to_dict())  # people look at the drawing

    def to_dict(self) -> dict[str, Any]:
        return {"image": self.image, "objects": self.objects, "drawing": str(self.drawing)}


@torch.no_grad()
def predict(
    run: Path, inputs: Sequence[str], min_score: float = 0.5, draw: Path | None = None, **_: Any
) -> Iterator[Found | PskdError]:
    """The objects on each image file with a score of at least ``min_score``, drawn into PNG files in ``draw``."""
    if not inputs:
        raise PskdError("which images? for example: pskd predict RUN photo.jpg")
    model, about = weights.restore(run, _rebuilt, "detection")
    device = devices.usable_device(RunFolder(run).config().train.device)
    model = model.to(device).eval()
    resize, channels, classes = Resize(*about["resize"]), about["view"]["channels"], about["classes"]
    folder = draw or run / "drawn"
    with kind_errors("drawings"):
        folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(inputs):
        try:
            image = pixels(decode(name, channels))
        except PskdError as error:
            yield error
            continue
        ((seen, answer),) = _detected(model, [resize(image)], device)
        kept = answer["scores"] >= min_score
        boxes = scaled(answer["boxes"][kept].cpu().float(), seen, tuple(image.shape[1:]))
        found = [
            {"class": classes[label - 1], "score": score, "box": [round(edge, 2) for edge in box]}
            for box, label, score in zip(
                boxes.tolist(), answer["labels"][kept].tolist(), answer["scores"][kept].tolist(), strict=True
            )
        ]
        drawing = folder / f"{number:03d}-{Path(name).stem}.png"
        _draw(image, boxes, found, drawing)
        yield Found(name, found, drawing)


def _draw(image: Tensor, boxes: Tensor, found: list[dict[str, Any]], file: Path) -> None:
    """A small image is drawn several times as large, so that its captions can be read."""
    from PIL import Image
    from torchvision.utils import draw_bounding_boxes

    times = max(1, READABLE // max(image.shape[1:]))
    canvas = image.expand(3, -1, -1).repeat_interleave(times, 1).repeat_interleave(times, 2)
    if found:
        captions = [f"{item['class']} {item['score']:.2f}" for item in found]
        canvas = draw_bounding_boxes(canvas, boxes * times, captions, colors="red")
    Image.fromarray(canvas.permute(1, 2, 0).numpy()).save(file)
