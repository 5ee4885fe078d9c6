"""A finished detection run put to work."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pskd import __version__
from pskd.errors import PskdError
from pskd.metrics.detection import Detections, Objects, coco_average_precision, voc_average_precision
from pskd.workbench.augment.boxes import Resize, scaled
from pskd.workbench.config import Config
from pskd.workbench.data import View
from pskd.workbench.data import detection as data
from pskd.workbench.data.detection import DetectionData, Scenes
from pskd.workbench.data.items import source_of
from pskd.workbench.data.opening import name_of
from pskd.workbench.data.view import decode, pixels
from pskd.workbench.models.detection import Detector, faster_rcnn, trunk_of
from pskd.workbench.runs.files import link_error, one_line_errors
from pskd.workbench.runs.group import Group
from pskd.workbench.runs.sharding import is_spread
from pskd.workbench.tasks.classification.predictor import rebuilt_classifier
from pskd.workbench.tasks.detection.calibration import DetectionCalibration
from pskd.workbench.tasks.detection.deployed import DeployedDetector, differences
from pskd.workbench.tasks.detection.drawing import draw as draw_boxes
from pskd.workbench.tasks.detection.settings import ModelConfig
from pskd.workbench.tasks.predictor import About, Answer, Deployed, Predictor, tried_on


class AboutDetector(About):
    """The detector's settings, its trunk's model, its classes, its view (``View.to_dict``) and sizes of an image."""

    model: ModelConfig  # type: ignore[assignment]
    trunk: dict[str, Any]
    classes: tuple[str, ...]
    view: dict[str, Any]
    resize: tuple[int, int]


class Found(Answer):
    """The objects on one image, and where they were drawn."""

    def __init__(self, image: str, objects: list[dict[str, Any]], drawing: Path | None = None) -> None:
        self.image, self.objects, self.drawing = image, objects, drawing

    def text(self) -> str:
        return json.dumps(self.to_dict())  # people look at the drawing

    def to_dict(self) -> dict[str, Any]:
        drawn = {} if self.drawing is None else {"drawing": str(self.drawing)}
        return {"image": self.image, "objects": self.objects, **drawn}

    def __repr__(self) -> str:
        return f"Found({self.image!r}: {self.objects})"


class DetectionPredictor(Predictor):
    """A detector with its classes and sizes; the run of its trunk may be gone."""

    about_class = AboutDetector
    calibration_class = DetectionCalibration
    validation_hint = "train with one: pskd train ... data.val=..., or data.val_images=100 for digits"
    options = frozenset({"min_score", "draw", "max_risk"})

    @classmethod
    def build(cls, about: AboutDetector, *, allow_code: bool = False) -> Detector:
        options = dict(about.trunk)
        try:
            classes, channels = int(options.pop("classes")), int(options.pop("channels"))
        except (KeyError, TypeError, ValueError):
            raise PskdError("the run folder does not say what trunk its detector has") from None
        classifier = rebuilt_classifier(options, classes, channels, allow_code=allow_code)
        return detector_of(classifier, about.model_dump())

    @torch.no_grad()
    def predict(self, inputs: Sequence[str], draw: Path | None = None, **options: Any) -> Iterator[Found | PskdError]:
        """The objects on each image file (see ``answers``), drawn into PNG files in ``draw``."""
        if not inputs:
            raise PskdError("which images? for example: pskd predict RUN photo.jpg")
        keeps, folder = self._keeping(**options), draw or self.run / "drawn"
        if draw is None and folder.is_symlink():
            raise link_error(folder)
        with one_line_errors("drawings", elsewhere="choose another folder with --draw"):
            folder.mkdir(parents=True, exist_ok=True)
        for number, name in enumerate(inputs):
            try:
                image = pixels(decode(name, self.about.view["channels"]))
            except PskdError as error:
                yield error
                continue
            objects = self._objects(image, keeps)
            drawing = folder / f"{number:03d}-{Path(name).stem}.png"
            draw_boxes(image, objects, self.classes, drawing)
            yield Found(name, objects, drawing)

    @torch.no_grad()
    def answers(self, inputs: Sequence[Any], **options: Any) -> Iterator[Found | PskdError]:
        """The objects on each image with a score of at least ``min_score``, 0.5 if nothing is said.

        Or those of which a share of at most ``max_risk`` is wrong, if the run was calibrated. Nothing is drawn.
        """
        keeps = self._keeping(**options)
        for place, value in enumerate(inputs):
            try:
                image = pixels(decode(source_of(value, f"image {place}"), self.about.view["channels"]))
            except PskdError as error:
                yield error
                continue
            yield Found(name_of(value, place), self._objects(image, keeps))

    def preprocess(self, image: Any) -> Tensor:
        """A file, PIL image, tensor (C, H, W) or array (H, W, C) as one of the model's inputs: (C, H, W) in 0..1."""
        opened = pixels(decode(source_of(image, "the image"), self.about.view["channels"]))
        return model_input(Resize(*self.about.resize).resized(opened), torch.device("cpu"))

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the labels 1, 2, ..."""
        classes: tuple[str, ...] = self.about.classes
        return classes

    def calibrate(
        self,
        config: Any,
        group: Group,
        *,
        split: str = "val",
        fingerprint: str | None = None,
        seen: Mapping[str, str] | None = None,
        **about: Any,
    ) -> DetectionCalibration:
        scenes = self._scenes(config, split)
        self.check_unseen(split, scenes.fingerprint, fingerprint, seen)
        found = detect_split(self.model, scenes, Resize(*self.about.resize), config, self.device, group)
        return DetectionCalibration.fitted(*found, self.classes, task=self.about.task, **about)

    def _keeping(
        self, min_score: float | None = None, max_risk: float | None = None, **_: Any
    ) -> Callable[[Tensor, Tensor], Tensor]:
        """Says which detections are shown, of their scores (M) as the network gives them and calibrated ones."""
        if max_risk is None:
            return lambda _raw, scores: scores >= (0.5 if min_score is None else min_score)
        if self.calibration is None:
            raise PskdError(f"{self.run} is not calibrated, which a risk needs: pskd calibrate {self.run} does it")
        least = self.calibration.min_score(max_risk)  # found once, for all images
        return lambda raw, scores: (raw >= least) & (scores >= (min_score or 0))

    def _objects(self, image: Tensor, keeps: Callable[[Tensor, Tensor], Tensor]) -> list[dict[str, Any]]:
        """What is on an image (C, H, W) uint8, in its own pixels."""
        ((seen, answer),) = _detected(self.model, [Resize(*self.about.resize).resized(image)], self.device)
        raw = answer["scores"].cpu()
        names = [self.classes[label - 1] for label in answer["labels"].tolist()]
        scores = raw if self.calibration is None else self.calibration.calibrated(raw, names)
        kept = keeps(raw, scores)
        boxes = scaled(answer["boxes"].cpu().float(), seen, tuple(image.shape[1:]))
        return [
            {"class": names[place], "score": float(scores[place]), "box": [round(edge, 2) for edge in box]}
            for place, box in enumerate(boxes.tolist())
            if kept[place]
        ]

    def evaluate(self, config: Config, split: str, group: Group) -> dict[str, Any]:
        scenes = self._scenes(config, split)
        objects, detections = detect_split(self.model, scenes, Resize(*self.about.resize), config, self.device, group)
        return detection_metrics(objects, detections, len(scenes), self.classes)

    @torch.no_grad()
    def deployed(self, config: Config | None, *, calibrated: bool = False, preprocessing: bool = False) -> Deployed:
        if calibrated and self.calibration is None:
            raise PskdError(f"{self.run} is not calibrated: pskd calibrate {self.run} does it")
        resize, temperatures = Resize(*self.about.resize), self.calibration.temperatures if calibrated else {}
        by_label = [1.0, *(temperatures.get(name, 1.0) for name in self.classes)]
        images, source = tried_on(config, self._scenes, (self.about.view["channels"], resize.shorter, resize.shorter))
        tries = []
        for image in map(resize.resized, images):
            ((_, answer),) = _detected(self.model, [image], self.device)
            boxes, labels, scores = (answer[name].cpu() for name in ("boxes", "labels", "scores"))
            if calibrated:
                scores = self.calibration.calibrated(scores, [self.classes[label - 1] for label in labels]).float()
            inputs = image.permute(1, 2, 0) if preprocessing else model_input(image, torch.device("cpu"))
            tries.append((inputs, (boxes, labels, scores)))
        pixels = "uint8 (H, W, C)" if preprocessing else "float32 (C, H, W) in 0..1"
        about = {
            "classes": list(self.classes),
            "resize": {"shorter side": resize.shorter, "longer side at most": resize.longest},
            "temperatures": by_label[1:],
            "input": f"one image, scaled to that size: {pixels}",
            "output": "boxes (M, 4) x1, y1, x2, y2 in the input's pixels; labels (M), 1 is the first class; scores (M)",
            "pskd": __version__,
        }
        sizes = {0: "height", 1: "width"} if preprocessing else {1: "height", 2: "width"}
        return Deployed(
            DeployedDetector(self.model, by_label if calibrated else None, pixels=preprocessing),
            tries,
            source,
            about,
            outputs={"boxes": 0.01, "labels": 0, "scores": 1e-5},
            axes={"image": sizes, **{name: {0: "objects"} for name in ("boxes", "labels", "scores")}},
            takes="one image of any size",
            counted=False,
            differences=differences,
        )

    def pictures(self, config: Config, which: Sequence[int], fingerprint: str) -> list[np.ndarray] | None:
        scenes = self._scenes(config, "test")
        if scenes.fingerprint != fingerprint:
            return None
        return [scenes.pixels(index).permute(1, 2, 0).numpy() for index in which]

    def _scenes(self, config: Config, split: str) -> Scenes:
        found = load_data(config)
        if found.classes != self.about.classes:
            raise PskdError(
                f"{self.run} knows the classes {', '.join(self.about.classes)}, the data has {', '.join(found.classes)}"
            )
        scenes = {"test": found.test, "val": found.val}.get(split)
        if scenes is None:
            raise PskdError(f"{self.run} has no validation split; {self.validation_hint}")
        return scenes


def load_data(config: Any) -> DetectionData:
    """The data set of a configuration."""
    settings = config.data
    return data.load(
        settings.name,
        splits={"train": settings.train, "val": settings.val, "test": settings.test},
        counts={"train": settings.train_images, "val": settings.val_images, "test": settings.test_images},
        root=settings.root,
        classes=settings.classes,
        download=settings.download,
        skip_bad=settings.on_bad == "skip",
        at_most=config.scale == "laptop",
        seed=config.train.seed,
    )


@torch.no_grad()
def detect_split(
    model: nn.Module, scenes: Scenes, resize: Resize, config: Any, device: torch.device, group: Group
) -> tuple[Objects, Detections]:
    """The objects of a split, and what the model finds in its images."""
    model.eval()
    share = group.share(len(scenes), even=is_spread(model))
    batches = scenes.batches(torch.split(share, config.eval.batch_size), resize, workers=config.data.workers)
    limit = config.model.max_detections
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
    return objects, detections


def detection_metrics(objects: Objects, detections: Detections, images: int, classes: Sequence[str]) -> dict[str, Any]:
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


def detector_of(classifier: nn.Module, about: dict[str, Any]) -> Detector:
    options = {key: value for key, value in about["model"].items() if key not in ("name", "backbone", "weights")}
    trunk = trunk_of(classifier, f"{about['model']['backbone']} ({about['trunk']['name']})")
    view = View.from_dict(about["view"])
    return faster_rcnn(trunk, len(about["classes"]), mean=view.mean, std=view.std, **options)


def model_input(image: Tensor, device: torch.device) -> Tensor:
    return image.to(device, non_blocking=True).float().div_(255)


def _detected(
    model: nn.Module, images: list[Tensor], device: torch.device
) -> list[tuple[tuple[int, ...], dict[str, Tensor]]]:
    """The size (height, width) of each image as the model saw it, and what is on it, the likeliest first."""
    answers = model([model_input(image, device) for image in images])
    return [(tuple(image.shape[1:]), answer) for image, answer in zip(images, answers, strict=True)]
