"""A finished detection run put to work."""

from __future__ import annotations

import colorsys
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from PIL import Image
from pydantic import ConfigDict
from torch import Tensor, nn
from torchvision.utils import draw_bounding_boxes

from pskd import __version__
from pskd.errors import PskdError
from pskd.metrics.detection import Detections, Objects, coco_average_precision, voc_average_precision
from pskd.settings import Count, Place, Range, Share
from pskd.workbench.augment.boxes import Resize, scale_boxes
from pskd.workbench.config import Config, base
from pskd.workbench.config.base import Side
from pskd.workbench.data import View
from pskd.workbench.data import detection as data
from pskd.workbench.data.detection import DetectionData, SceneSplit
from pskd.workbench.data.items import source_of
from pskd.workbench.data.opening import name_of
from pskd.workbench.data.view import decode, pixels
from pskd.workbench.models.detection import Detector, faster_rcnn, trunk_of
from pskd.workbench.runs.files import link_error, one_line_errors, write_atomic
from pskd.workbench.runs.group import Group
from pskd.workbench.runs.sharding import is_spread
from pskd.workbench.tasks.classification.predictor import build_classifier
from pskd.workbench.tasks.detection.deployment import DeployedDetector, DetectionCalibration, differences
from pskd.workbench.tasks.predictor import About, Answer, Evaluation, Exportable, ImagePredictor, splits_of

READABLE = 400  # pixels of a drawing's longer side
TURN = 0.618034  # of the colour circle from one class to the next: the golden section never repeats a colour
CPU = torch.device("cpu")


class DetectionModelConfig(base.ModelConfig):
    """`backbone` is the trunk: the folder of a finished classification run, or a model's name (resnet8,
    torchvision:resnet50), which starts at random or, if torchvision's, from `weights` (DEFAULT, IMAGENET1K_V1, ...).

    `head=fpn` pools from a pyramid over the stages from `finest_stride` on, `c4` from the last stage but one, with the
    last stage as box head. `frozen` is how many parts of the trunk stay as they are: 1 the stem, 2 the first stage too.
    `statistics` are those of the trunk's batch norms. `anchors` are sides in pixels, by default taken from the strides.
    `rois` are the regions per image that the box head learns from. Detections below `min_score` are dropped.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: Literal["faster_rcnn"] = "faster_rcnn"
    backbone: Annotated[str | None, Place()] = None
    weights: str | None = None
    head: Literal["fpn", "c4"] = "fpn"
    frozen: Annotated[int, Range(ge=0)] = 0
    statistics: Literal["frozen", "trained"] = "frozen"
    finest_stride: Count = 4
    anchors: tuple[Side, ...] = ()
    rois: Count = 512
    pyramid_width: Count = 256
    box_width: Count = 1024
    min_score: Share = 0.05
    max_detections: Count = 100


class AboutDetector(About):
    """The detector's settings, its trunk's model, its classes, its view (``View.to_dict``) and sizes of an image."""

    model: DetectionModelConfig  # type: ignore[assignment]
    trunk: dict[str, Any]
    classes: tuple[str, ...]
    view: dict[str, Any]
    resize: tuple[int, int]


class DetectedObjects(Answer):
    """The objects on one image, and the file in which they are drawn."""

    def __init__(self, image: str, objects: list[dict[str, Any]], drawing: Path | None = None) -> None:
        self.image, self.objects, self.drawing = image, objects, drawing

    def text(self) -> str:
        return json.dumps(self.to_dict())  # people look at the drawing

    def to_dict(self) -> dict[str, Any]:
        drawing = {} if self.drawing is None else {"drawing": str(self.drawing)}
        return {"image": self.image, "objects": self.objects, **drawing}

    def __repr__(self) -> str:
        return f"DetectedObjects({self.image!r}: {self.objects})"


class DetectionPredictor(ImagePredictor):
    """A detector with its classes and sizes. It does not need the run of its trunk."""

    about_class = AboutDetector
    calibration_class = DetectionCalibration
    validation_hint = "train with one: pskd train ... data.val=..., or data.val_images=100 for digits"
    options = frozenset({"min_score", "draw", "max_risk"})

    def __init__(self, run: Path, about: AboutDetector, model: nn.Module, device: torch.device) -> None:
        super().__init__(run, about, model, device)
        self.resize = Resize(*about.resize)

    @classmethod
    def build(cls, about: AboutDetector, *, allow_code: bool = False) -> Detector:
        options = dict(about.trunk)
        try:
            classes, channels = int(options.pop("classes")), int(options.pop("channels"))
        except (KeyError, TypeError, ValueError):
            raise PskdError("the run folder does not say what trunk its detector has") from None
        classifier = build_classifier(options, classes, channels, allow_code=allow_code)
        return build_detector(classifier, about.model_dump())

    def predict(self, inputs: Sequence[str], draw: Path | None = None, **options: Any) -> Iterator[Answer | PskdError]:
        """The objects on each image file (see ``answers``), drawn into PNG files in ``draw``."""
        folder = draw or self.run / "drawn"
        if draw is None and folder.is_symlink():
            raise link_error(folder)
        return super().predict(inputs, draw=folder, **options)

    @torch.no_grad()
    def answers(
        self,
        inputs: Sequence[Any],
        min_score: float | None = None,
        max_risk: float | None = None,
        draw: Path | None = None,
        **_: Any,
    ) -> Iterator[DetectedObjects | PskdError]:
        """The objects on each image.

        Args:
            inputs: files, PIL images, tensors (C, H, W) or arrays (H, W, C).
            min_score: of the objects to return; by default 0.5, and 0 with ``max_risk``.
            max_risk: return only so many objects that at most this share is wrong. The run has to be calibrated.
            draw: a folder for the images with their objects; by default nothing is drawn.
        """
        keeps = self._filter(min_score, max_risk)
        if draw is not None:
            with one_line_errors("drawings", elsewhere="choose another folder with --draw"):
                draw.mkdir(parents=True, exist_ok=True)
        for place, value in enumerate(inputs):
            name = name_of(value, place)
            try:
                image = pixels(decode(source_of(value, name), self.about.view["channels"]))
            except PskdError as error:
                yield error
                continue
            objects, drawing = self._objects(image, keeps), None
            if draw is not None:
                drawing = draw / f"{place:03d}-{Path(name).stem}.png"
                draw_objects(image, objects, self.classes, drawing)
            yield DetectedObjects(name, objects, drawing)

    def preprocess(self, image: Any) -> Tensor:
        """A file, PIL image, tensor (C, H, W) or array (H, W, C) as one of the model's inputs: (C, H, W) in 0..1."""
        decoded = pixels(decode(source_of(image, "the image"), self.about.view["channels"]))
        return model_input(self.resize.scale_image(decoded), CPU)

    def _filter(self, min_score: float | None, max_risk: float | None) -> Callable[[Tensor, Tensor], Tensor]:
        """A function of the scores (M) as the network gives them and of the calibrated ones: which objects to show."""
        if max_risk is None:
            return lambda _raw, scores: scores >= (0.5 if min_score is None else min_score)
        self.need_calibration()
        least = self.calibration.min_score(max_risk)
        return lambda raw, scores: (raw >= least) & (scores >= (min_score or 0))

    def _objects(self, image: Tensor, keeps: Callable[[Tensor, Tensor], Tensor]) -> list[dict[str, Any]]:
        """What is on an image (C, H, W) uint8, in its own pixels."""
        ((seen, answer),) = self._detect([self.resize.scale_image(image)])
        raw = answer["scores"].cpu()
        names = [self.classes[label - 1] for label in answer["labels"].tolist()]
        scores = raw if self.calibration is None else self.calibration.calibrate_scores(raw, names)
        kept = keeps(raw, scores)
        boxes = scale_boxes(answer["boxes"].cpu().float(), seen, tuple(image.shape[1:]))
        return [
            {"class": names[place], "score": float(scores[place]), "box": [round(edge, 2) for edge in box]}
            for place, box in enumerate(boxes.tolist())
            if kept[place]
        ]

    def _detect(self, images: list[Tensor]) -> list[tuple[tuple[int, ...], dict[str, Tensor]]]:
        """The size (height, width) of each image as the model sees it, and its objects, most likely first."""
        answers = self.model([model_input(image, self.device) for image in images])
        return [(tuple(image.shape[1:]), answer) for image, answer in zip(images, answers, strict=True)]

    def splits(self, config: Config, *names: str) -> Mapping[str, SceneSplit]:
        data = load_data(config)
        if data.classes != self.classes:
            own, others = ", ".join(self.classes), ", ".join(data.classes)
            raise PskdError(f"{self.run} knows the classes {own}, the data has {others}")
        return splits_of(data, names)

    @torch.no_grad()
    def detect_split(self, scenes: SceneSplit, config: Any, group: Group) -> tuple[Objects, Detections]:
        """The objects of a split, and what the model detects in its images."""
        share = group.share(len(scenes), even=is_spread(self.model))
        batches = scenes.batches(torch.split(share, config.eval.batch_size), self.resize, workers=config.data.workers)
        limit = config.model.max_detections
        rows = torch.full((len(share), limit, 6), torch.nan)  # image after image: box, label, score
        answers = (answer for batch in batches for answer in self._detect([scene.image for scene in batch]))
        for row, size, (seen, answer) in zip(rows, scenes.sizes[share].tolist(), answers, strict=True):
            boxes = scale_boxes(answer["boxes"].cpu().float(), seen, size)
            labels, scores = answer["labels"].cpu() - 1, answer["scores"].cpu()
            row[: len(boxes)] = torch.cat((boxes, labels[:, None], scores[:, None]), 1)
        everything = group.gather(rows, len(scenes))
        real = everything[..., 5].isfinite()
        kept = everything[real].double().numpy()
        detections = Detections(real.nonzero()[:, 0].numpy(), kept[:, 4].astype(np.int64), kept[:, :4], kept[:, 5])
        columns = (scenes.image_of_object, scenes.labels, scenes.boxes.double(), scenes.difficult)
        objects = Objects(*(column.numpy() for column in columns))
        return objects, detections

    def evaluate(self, samples: SceneSplit, config: Config, group: Group) -> Evaluation:
        objects, detections = self.detect_split(samples, config, group)
        predictions = {
            "names": np.array(samples.names),
            "classes": np.array(self.classes),
            "fingerprint": np.array(samples.fingerprint),
            **{f"object_{name}": values for name, values in objects._asdict().items()},
            **{f"detected_{name}": values for name, values in detections._asdict().items()},
        }
        return Evaluation(detection_metrics(objects, detections, len(samples), self.classes), predictions)

    def calibrate(
        self, splits: Mapping[str, SceneSplit], split: str, config: Config, group: Group, **about: Any
    ) -> DetectionCalibration:
        objects, detections = self.detect_split(splits[split], config, group)
        return DetectionCalibration.fit(objects, detections, self.classes, task=self.about.task, **about)

    @torch.no_grad()
    def to_export(self, config: Config | None, *, calibrated: bool = False, preprocessing: bool = False) -> Exportable:
        if calibrated:
            self.need_calibration()
        temperatures = self.calibration.temperatures if calibrated else {}
        by_label = [1.0, *(temperatures.get(name, 1.0) for name in self.classes)]
        shorter, longest = self.resize.shorter, self.resize.longest
        images, source = self.trial_images(config, (self.about.view["channels"], shorter, shorter))
        tries = []
        for image in map(self.resize.scale_image, images):
            ((_, answer),) = self._detect([image])
            boxes, labels, scores = (answer[name].cpu() for name in ("boxes", "labels", "scores"))
            if calibrated:
                names = [self.classes[label - 1] for label in labels]
                scores = self.calibration.calibrate_scores(scores, names).float()
            inputs = image.permute(1, 2, 0) if preprocessing else model_input(image, CPU)
            tries.append((inputs, (boxes, labels, scores)))
        about = {
            "classes": list(self.classes),
            "resize": {"shorter side": shorter, "longer side at most": longest},
            "temperatures": by_label[1:],
            "input": "one image, scaled to that size: "
            + ("uint8 (H, W, C)" if preprocessing else "float32 (C, H, W) in 0..1"),
            "output": "boxes (M, 4) x1, y1, x2, y2 in the input's pixels; labels (M), 1 is the first class; scores (M)",
            "pskd": __version__,
        }
        sizes = {0: "height", 1: "width"} if preprocessing else {1: "height", 2: "width"}
        return Exportable(
            DeployedDetector(self.model, by_label if calibrated else None, pixels=preprocessing),
            tries,
            source,
            about,
            outputs={"boxes": 0.01, "labels": 0, "scores": 1e-5},
            axes={"image": sizes, **{name: {0: "objects"} for name in ("boxes", "labels", "scores")}},
            takes="one image of any size",
            fixed_outputs=False,
            differences=differences,
        )


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


def detection_metrics(objects: Objects, detections: Detections, images: int, classes: Sequence[str]) -> dict[str, Any]:
    """All in 0..1. A class without objects in the split has no AP."""
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


def build_detector(classifier: nn.Module, about: dict[str, Any]) -> Detector:
    """A detector on the trunk of a classifier, as ``AboutDetector`` describes it."""
    options = {key: value for key, value in about["model"].items() if key not in ("name", "backbone", "weights")}
    trunk = trunk_of(classifier, f"{about['model']['backbone']} ({about['trunk']['name']})")
    view = View.from_dict(about["view"])
    return faster_rcnn(trunk, len(about["classes"]), mean=view.mean, std=view.std, **options)


def model_input(image: Tensor, device: torch.device) -> Tensor:
    return image.to(device, non_blocking=True).float().div_(255)


def class_colour(place: int) -> tuple[int, int, int]:
    """The colour (red, green, blue) of a class by its place among the classes, the same in every drawing."""
    hue = (place * TURN) % 1
    lightness = 0.4 if 0.1 < hue < 0.55 else 0.5  # green and yellow look brighter than other colours
    red, green, blue = colorsys.hls_to_rgb(hue, lightness, 0.95)
    return round(255 * red), round(255 * green), round(255 * blue)


def draw_objects(image: Tensor, objects: Sequence[dict[str, Any]], classes: Sequence[str], file: Path) -> None:
    """Write an image (C, H, W) with its objects. A small image is enlarged, so that its captions can be read."""
    times = max(1, READABLE // max(image.shape[1:]))
    canvas = image.expand(3, -1, -1).repeat_interleave(times, 1).repeat_interleave(times, 2)
    if objects:
        captions = [f"{item['class']} {item['score']:.2f}" for item in objects]
        boxes = torch.tensor([item["box"] for item in objects])
        colours = [class_colour(classes.index(item["class"])) for item in objects]
        canvas = draw_bounding_boxes(canvas, boxes * times, captions, colors=colours, width=2)
    drawing = io.BytesIO()
    Image.fromarray(canvas.permute(1, 2, 0).numpy()).save(drawing, "PNG")
    with one_line_errors("drawing", elsewhere="choose another folder with --draw"):
        write_atomic(file, drawing.getvalue())
