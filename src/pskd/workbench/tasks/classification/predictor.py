"""A finished classification run put to work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pskd import __version__
from pskd.calibration import prediction_sets
from pskd.errors import PskdError, one_line
from pskd.metrics import functional
from pskd.metrics.details import class_scores, confusions, coverage_at_risk, most_confused
from pskd.workbench import data, models, registry
from pskd.workbench.config import Config
from pskd.workbench.data import ImageData, InMemory, Split, View
from pskd.workbench.data.caching import Caching
from pskd.workbench.data.items import source_of
from pskd.workbench.data.opening import BATCH, OpenedImages, open_in_batches
from pskd.workbench.data.splits import share_inside
from pskd.workbench.models.external import LIBRARIES
from pskd.workbench.runs.group import Group
from pskd.workbench.runs.sharding import is_spread
from pskd.workbench.runs.trust import plain_options
from pskd.workbench.tasks.classification.deployment import ClassCalibration, DeployedClassifier, Effect, probabilities
from pskd.workbench.tasks.predictor import About, Answer, Evaluation, Exportable, ImagePredictor, splits_of

BY_CHANCE = 0.05  # the share of images that may be in the training set too: published data sets have doubles
LARGEST_MATRIX = 200  # classes up to which an evaluation has the whole confusion matrix


class Prediction(Answer):
    """The likeliest classes of one image, most likely first, with their probabilities.

    Args:
        names: the set of classes for the wanted coverage, most likely first.
        sure: whether an answer keeps the wanted risk.
    """

    def __init__(
        self,
        image: str,
        classes: list[tuple[str, float]],
        names: list[str] | None = None,
        sure: bool | None = None,
    ) -> None:
        self.image, self.classes, self.set, self.sure = image, classes, names, sure

    @property
    def label(self) -> str:
        """The likeliest class."""
        return self.classes[0][0]

    @property
    def confidence(self) -> float:
        """Its probability."""
        return self.classes[0][1]

    def __repr__(self) -> str:
        return f"Prediction({self.image!r}: {', '.join(f'{name} {share:.1%}' for name, share in self.classes)})"

    def text(self) -> str:
        lines = [one_line(self.image)]
        if self.sure is False:
            likeliest = ", ".join(f"{one_line(name)} {share:.0%}" for name, share in self.classes[:2])
            lines.append(f"  not sure: {likeliest}")
        elif self.set is None:
            lines += [f"  {share:7.2%}  {one_line(name)}" for name, share in self.classes]
        if self.set is not None:
            lines.append(f"  one of: {', '.join(map(one_line, self.set))}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        optional = {"set": self.set, "sure": self.sure}
        given = {name: value for name, value in optional.items() if value is not None}
        return {"image": self.image, "classes": self.classes, **given}

    def row(self) -> dict[str, str]:
        cells = {"image": self.image, "class": self.label, "probability": f"{self.confidence:.6f}"}
        if self.set is not None:
            cells["set"] = "|".join(self.set)
        if self.sure is not None:
            cells["sure"] = "yes" if self.sure else "no"
        return cells


class AboutClassifier(About):
    """The model's name and options, its classes, and how it sees an image (``View.to_dict``)."""

    classes: tuple[str, ...]
    view: dict[str, Any]


class ClassPredictor(ImagePredictor):
    """An image classifier with its classes and its view of an image."""

    about_class = AboutClassifier
    calibration_class = ClassCalibration
    validation_hint = "train with one, pskd train ... data.val_fraction=0.1, or put images into a folder val"
    options = frozenset({"top", "coverage", "max_risk", "workers"})

    def __init__(self, run: Path, about: AboutClassifier, model: nn.Module, device: torch.device) -> None:
        super().__init__(run, about, model, device)
        self.view = View.from_dict(about.view)

    @classmethod
    def build(cls, about: AboutClassifier, *, allow_code: bool = False) -> nn.Module:
        model = about.model
        if about.version is None and model.get("name") == "preact_resnet18":
            model = {"shortcut": "raw", **model}  # the meaning of this name in 0.1
        channels = View.from_dict(about.view).channels
        return build_classifier(model, len(about.classes), channels, allow_code=allow_code)

    def preprocess(self, image: Any) -> Tensor:
        """A file, PIL image, tensor (C, H, W) or array (H, W, C) as the model's input (C, H, W), on the CPU."""
        return self.view.normalize(self.view.open(source_of(image, "the image"))[None])[0]

    @torch.no_grad()
    def answers(
        self,
        inputs: Sequence[Any],
        top: int = 5,
        coverage: float | None = None,
        max_risk: float | None = None,
        batch_size: int = BATCH,
        workers: int | None = None,
        **_: Any,
    ) -> Iterator[Prediction | PskdError]:
        """The ``top`` likeliest classes of each image, with calibrated probabilities if the run is calibrated.

        Args:
            inputs: files, PIL images, tensors (C, H, W) or arrays (H, W, C).
            coverage: also return the set of classes that holds the true one with this probability.
            max_risk: say "not sure" for an image, so that at most this share of the other answers is wrong.
            batch_size: images that the model sees at a time.
            workers: processes that open images. By default there are some if there are many images.
        """
        sets = least = None
        if coverage is not None or max_risk is not None:
            self.need_calibration()
            sets = None if coverage is None else self.calibration.set_threshold(coverage)
            least = None if max_risk is None else self.calibration.reject_threshold(max_risk)
        for images in open_in_batches(inputs, self.view, batch_size, workers):
            answers = iter(self._answer(images, top, sets, least))
            for error in images.errors:
                yield next(answers) if error is None else PskdError(error)

    def _answer(self, images: OpenedImages, top: int, sets: Tensor | None, least: float | None) -> list[Prediction]:
        """An answer to each image that could be read, with thresholds for its set and its confidence."""
        if not len(images.pixels):
            return []
        logits = self.model(self.view.normalize(images.pixels.to(self.device, non_blocking=True))).float().cpu()
        temperature = 1.0 if self.calibration is None else self.calibration.temperature
        values, which = torch.softmax(logits / temperature, 1).topk(min(top, len(self.classes)))
        likeliest = [
            [(self.classes[c], share) for c, share in zip(own, shares, strict=True)]
            for own, shares in zip(which.tolist(), values.tolist(), strict=True)
        ]
        members: Sequence[list[str] | None] = [None] * len(logits)
        sure: Sequence[bool | None] = [None] * len(logits)
        if sets is not None:
            order = logits.argsort(dim=1, descending=True, stable=True)
            inside = prediction_sets(probabilities(logits), sets).gather(1, order)
            by_image = order[inside].split(inside.sum(1).tolist())
            members = [[self.classes[c] for c in own.tolist()] for own in by_image]
        if least is not None:
            sure = (probabilities(logits).amax(1) >= least).tolist()
        names = [name for name, error in zip(images.names, images.errors, strict=True) if error is None]
        return [Prediction(*each) for each in zip(names, likeliest, members, sure, strict=True)]

    def splits(self, config: Config, *names: str) -> Mapping[str, Split]:
        data = load_data(config)
        if data.classes != self.classes:
            unknown = sorted(set(data.classes) ^ set(self.classes))
            hint = f", such as {unknown[0]!r} on one side only" if unknown else " in another order"
            raise PskdError(
                f"{self.run} knows {len(self.classes)} classes, the data has {len(data.classes)}{hint}:"
                " a model can only be evaluated on the classes it was trained on"
            )
        splits = splits_of(data, names)
        for samples in splits.values():
            if isinstance(samples, InMemory):
                shape = tuple(samples.images.shape[1:])
                if shape != (self.view.channels, *self.view.size):
                    raise PskdError(
                        f"{self.run} sees images of {self.view.channels} x {self.view.size}, these have {shape}"
                    )
        cache = image_cache(config)
        return {name: cache.seen(replace(samples, view=self.view)) for name, samples in splits.items()}

    @torch.no_grad()
    def score(self, samples: Split, config: Any, group: Group) -> Tensor:
        """The log-probabilities (N, K) of all samples, on the CPU, in their order."""
        share = group.share(len(samples), even=is_spread(self.model))
        batches = samples.batches(
            torch.split(share, config.eval.batch_size), device=self.device, workers=config.data.workers
        )
        logits = [self.model(batch.inputs).float() for batch in batches]
        empty = torch.zeros(0, len(self.classes))
        return group.gather(torch.log_softmax(torch.cat(logits) if logits else empty, 1).cpu(), len(samples))

    def evaluate(self, samples: Split, config: Config, group: Group) -> Evaluation:
        log_probs = self.score(samples, config, group)
        scores = functional.score_samples(log_probs, samples.labels, from_logits=True)
        predictions = {
            "probs": log_probs.exp().numpy(),
            "labels": samples.labels.numpy(),
            "classes": np.array(self.classes),
            "fingerprint": np.array(samples.fingerprint),
        }
        details = partial(class_details, scores, log_probs.argmax(1), samples.labels, self.classes)
        return Evaluation(functional.summarize(scores, config.eval.ece_bins), predictions, details=details)

    def calibrate(
        self, splits: Mapping[str, Split], split: str, config: Config, group: Group, **about: Any
    ) -> ClassCalibration:
        scores = {name: self.score(splits[name], config, group) for name in dict.fromkeys((split, "test"))}
        labels, bins = {name: splits[name].labels for name in scores}, config.eval.ece_bins
        about = {"task": self.about.task, "ece_bins": bins, "effect": {}, **about}
        result = ClassCalibration.fit(scores[split], labels[split], **about)
        effects = {name: Effect.of(scores[name], labels[name], result.temperature, bins) for name in scores}
        return result.model_copy(update={"effect": effects})

    def check_apart(self, samples: Split, own: Config) -> None:
        try:
            trained = load_data(own)
            shares = {"training": share_inside(samples, trained.train), "test": share_inside(samples, trained.test)}
        except (PskdError, OSError):
            return  # its own data is no longer there: only the fingerprints can be compared
        for name, share in shares.items():
            if share > BY_CHANCE:
                raise PskdError(
                    f"{self.run}: {share:.0%} of these images are in its own {name} set, on which nothing may be"
                    " calibrated: name other data, or leave --root out to calibrate on its validation split"
                )

    def to_export(self, config: Config | None, *, calibrated: bool = False, preprocessing: bool = False) -> Exportable:
        if calibrated:
            self.need_calibration()
        temperature = self.calibration.temperature if calibrated else 1.0
        images, source = self.trial_images(config, (self.view.channels, *self.view.size))
        pixels = torch.stack(images)
        inputs = self.view.normalize(pixels)
        with torch.no_grad():
            expected = torch.softmax(self.model(inputs.to(self.device)).float() / temperature, 1).cpu()
        about = {
            "classes": list(self.classes),
            "view": self.about.view,
            "temperature": temperature,
            "input": "uint8 pixels (N, H, W, C)" if preprocessing else "normalised float32 (N, C, H, W)",
            "output": "probabilities (N, classes)",
            "pskd": __version__,
        }
        return Exportable(
            DeployedClassifier(self.model, temperature, self.view if preprocessing else None),
            [(pixels.permute(0, 2, 3, 1) if preprocessing else inputs, [expected])],
            source,
            about,
            outputs={"probabilities": 1e-5},
            axes={"image": {0: "batch"}, "probabilities": {0: "batch"}},
            takes="any batch size",
        )

    def _origin(self) -> tuple[str, str, dict[str, Any]]:
        """The library that the model comes from, its name there, and its options."""
        options = dict(self.about.model)
        name = str(options.pop("name"))
        library, _, member = name.partition(":")
        return (*((library, member) if library in LIBRARIES else ("pskd", name)), plain_options(options))

    def hub_config(self) -> dict[str, Any]:
        """In the form that timm reads. Models of other libraries are described there, too."""
        library, name, options = self._origin()
        view, labels = self.view, {"num_classes": len(self.classes), "label_names": list(self.classes)}
        channels = {"in_chans" if library == "timm" else "in_channels": view.channels}
        return {
            "library": library,
            "architecture": name,
            **labels,
            "model_args": {**channels, **options},
            "pretrained_cfg": {
                **labels,
                "input_size": [view.channels, *view.size],
                "fixed_input_size": False,
                "interpolation": "bilinear",
                "crop_pct": max(view.size) / (view.resize or max(view.size)),
                "crop_mode": "center",
                "mean": list(view.mean),
                "std": list(view.std),
            },
        }

    def loading(self) -> dict[str, str]:
        library, name, options = self._origin()
        lines = {}
        if library == "timm":
            lines[library] = (
                f'import timm\n\nmodel = timm.create_model("local-dir:FOLDER", pretrained=True).eval()  # {name}'
            )
        elif library == "torchvision" and self.view.channels == 3 and not options:
            lines[library] = (
                "from safetensors.torch import load_file\nfrom torchvision.models import get_model\n\n"
                f'model = get_model("{name}", num_classes={len(self.classes)})\n'
                'model.load_state_dict(load_file("FOLDER/model.safetensors"), strict=True)\nmodel.eval()'
            )
        return {**lines, "pskd": 'import pskd\n\nclassify = pskd.load("FOLDER")\nprint(classify("photo.jpg"))'}


def class_details(
    scores: functional.SampleScores, guesses: Tensor, labels: Tensor, classes: Sequence[str]
) -> dict[str, Any]:
    """What only `pskd evaluate` shows: coverage at error rates, metrics by class, confusions."""
    curve = functional.risk_coverage_curve_from(scores.confidence, scores.correct)
    matrix = confusions(guesses, labels, len(classes))
    columns = class_scores(matrix)
    by_class = zip(*(column.tolist() for column in columns), strict=True)
    details: dict[str, Any] = {
        **{f"coverage_at_{percent}": 100 * coverage_at_risk(curve, percent / 100) for percent in (1, 5, 10)},
        "per_class": {
            name: {key: value for key, value in zip(columns._fields, values, strict=True) if value == value}
            for name, values in zip(classes, by_class, strict=True)
        },
        "most_confused": [
            {**pair._asdict(), "label": classes[pair.label], "taken_for": classes[pair.taken_for]}
            for pair in most_confused(matrix)
        ],
    }
    return {**details, "confusion": matrix.to_dense().tolist()} if len(classes) <= LARGEST_MATRIX else details


def build_classifier(model: dict[str, Any], num_classes: int, channels: int, *, allow_code: bool = False) -> nn.Module:
    """The classifier that a run folder describes by name and options."""
    options = dict(model)
    name = options.pop("name", None)
    if not isinstance(name, str):
        raise PskdError(f"model.name is {name!r}: the run folder does not name its model")
    if registry.is_code(name):
        registry.models.load(name, allow_code=allow_code)
    return models.create(name, num_classes, channels, **plain_options(options))


def load_data(config: Any) -> ImageData:
    """The data set of a configuration."""
    settings = config.data.model_dump(exclude={"balance", "workers", "cache", "shrink", "resize"})
    return data.load(**settings, seed=config.train.seed, at_most=config.scale == "laptop")


def image_cache(config: Any) -> Caching:
    """How the images of a configuration are prepared and kept."""
    settings = config.data
    return Caching(settings.name, settings.root, settings.cache, settings.shrink, settings.resize)
