"""A finished classification run put to work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pskd import __version__
from pskd.errors import PskdError
from pskd.metrics import functional
from pskd.workbench import data, models, registry
from pskd.workbench.config import Config
from pskd.workbench.data import ImageData, InMemory, Split, View
from pskd.workbench.data.caching import Caching
from pskd.workbench.data.items import source_of
from pskd.workbench.data.opening import BATCH, opened_batches
from pskd.workbench.data.overlap import share_inside
from pskd.workbench.runs.group import Group
from pskd.workbench.runs.sharding import is_spread
from pskd.workbench.runs.trust import plain_options
from pskd.workbench.tasks.classification import hub
from pskd.workbench.tasks.classification.answers import Answering, Prediction
from pskd.workbench.tasks.classification.calibration import ClassCalibration, Effect
from pskd.workbench.tasks.classification.deployed import DeployedClassifier
from pskd.workbench.tasks.classification.details import detailed
from pskd.workbench.tasks.predictor import About, Deployed, Predictor, tried_on

BY_CHANCE = 0.05  # so many images of a data set may stand in its training part too: published sets have doubles


class AboutClassifier(About):
    """The model's name and options, its classes, and what it sees of an image (``View.to_dict``)."""

    classes: tuple[str, ...]
    view: dict[str, Any]


class ClassPredictor(Predictor):
    """An image classifier with its classes and its view of an image."""

    about_class = AboutClassifier
    calibration_class = ClassCalibration
    validation_hint = "train with one, pskd train ... data.val_fraction=0.1, or put images into a folder val"
    options = frozenset({"top", "coverage", "max_risk", "workers"})

    def __init__(self, run: Path, about: AboutClassifier, model: nn.Module, device: torch.device) -> None:
        super().__init__(run, about, model, device)
        self.classes = about.classes
        self.view = View.from_dict(about.view)

    @classmethod
    def build(cls, about: AboutClassifier, *, allow_code: bool = False) -> nn.Module:
        model = about.model
        if about.version is None and model.get("name") == "preact_resnet18":
            model = {"shortcut": "raw", **model}  # what this name meant in 0.1
        channels = View.from_dict(about.view).channels
        return rebuilt_classifier(model, len(about.classes), channels, allow_code=allow_code)

    def preprocess(self, image: Any) -> Tensor:
        """A file, PIL image, tensor (C, H, W) or array (H, W, C) as the model's input (C, H, W), on the CPU."""
        return self.view.normalize(self.view.open(source_of(image, "the image"))[None])[0]

    def predict(self, inputs: Sequence[str], **options: Any) -> Iterator[Prediction | PskdError]:
        """The ``top`` likeliest classes of each image file."""
        if not inputs:
            raise PskdError("which images? for example: pskd predict RUN photo.jpg")
        return self.answers(inputs, **options)

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
        """The ``top`` likeliest classes of each image, with calibrated probabilities if the run was calibrated.

        Args:
            inputs: files, PIL images, tensors (C, H, W) or arrays (H, W, C).
            coverage: also the set of classes that holds the true one with this probability.
            max_risk: say "not sure" where an answer would make more of the answers wrong than this share.
            batch_size: of the images that the model sees at a time.
            workers: processes that open images; by default some if there are many.
        """
        if self.calibration is None and (coverage is not None or max_risk is not None):
            raise PskdError(
                f"{self.run} is not calibrated, which a coverage and a risk need: pskd calibrate {self.run} does it"
            )
        answered = Answering(
            self.model, self.view, self.classes, self.device, self.calibration, top, coverage, max_risk
        )
        for opened in opened_batches(inputs, self.view, batch_size, workers):
            found = iter(answered(opened))
            for error in opened.errors:
                yield next(found) if error is None else PskdError(error)

    def calibrate(
        self,
        config: Any,
        group: Group,
        *,
        split: str = "val",
        fingerprint: str | None = None,
        seen: Mapping[str, str] | None = None,
        **about: Any,
    ) -> ClassCalibration:
        splits = {name: self.split(config, name) for name in dict.fromkeys((split, "test"))}
        self.check_unseen(split, splits[split].fingerprint, fingerprint, seen)
        scored = {
            name: score_split(self.model, samples, len(self.classes), config, self.device, group)
            for name, samples in splits.items()
        }
        bins = config.eval.ece_bins
        found = ClassCalibration.fitted(
            scored[split], splits[split].labels, task=self.about.task, ece_bins=bins, effect={}, **about
        )
        effects = {
            name: Effect.of(scored[name], samples.labels, found.temperature, bins) for name, samples in splits.items()
        }
        return found.model_copy(update={"effect": effects})

    def check_apart(self, config: Config, own: Config, split: str) -> None:
        samples = self.split(config, split)
        try:
            trained = load_data(own)
            shares = {"training": share_inside(samples, trained.train), "test": share_inside(samples, trained.test)}
        except (PskdError, OSError):
            return  # its own data is no longer where it was: fingerprints are all there is to know it by
        for name, share in shares.items():
            if share > BY_CHANCE:
                raise PskdError(
                    f"{self.run}: {share:.0%} of these images are in its own {name} set, on which nothing may be"
                    " calibrated: name other data, or leave --root out to calibrate on its validation split"
                )

    def evaluate(self, config: Config, split: str, group: Group) -> dict[str, Any]:
        samples = self.split(config, split)
        scored = score_split(self.model, samples, len(self.classes), config, self.device, group)
        scores = functional.score_samples(scored, samples.labels, from_logits=True)
        metrics = functional.summarize(scores, config.eval.ece_bins)
        return {**metrics, **detailed(scores, scored.argmax(1), samples.labels, self.classes)}

    def deployed(self, config: Config | None, *, calibrated: bool = False, preprocessing: bool = False) -> Deployed:
        if calibrated and self.calibration is None:
            raise PskdError(f"{self.run} is not calibrated: pskd calibrate {self.run} does it")
        temperature = self.calibration.temperature if calibrated else 1.0
        images, source = tried_on(config, self.split, (self.view.channels, *self.view.size))
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
        return Deployed(
            DeployedClassifier(self.model, temperature, self.view if preprocessing else None),
            [(pixels.permute(0, 2, 3, 1) if preprocessing else inputs, [expected])],
            source,
            about,
            outputs={"probabilities": 1e-5},
            axes={"image": {0: "batch"}, "probabilities": {0: "batch"}},
            takes="any batch size",
        )

    def hub_config(self) -> dict[str, Any]:
        return hub.hub_config(self.about.model, self.classes, self.view)

    def loading(self) -> dict[str, str]:
        return hub.loading(self.about.model, self.classes, self.view)

    def pictures(self, config: Config, which: Sequence[int], fingerprint: str) -> list[np.ndarray] | None:
        samples = self.split(config, "test")
        if samples.fingerprint != fingerprint:
            return None
        return [samples.pixels(index).permute(1, 2, 0).numpy() for index in which]

    def split(self, config: Config, split: str) -> Split:
        """The samples of "test" or "val" that the configuration names, in this model's view and classes."""
        found = load_data(config)
        if found.classes != self.classes:
            unknown = sorted(set(found.classes) ^ set(self.classes))
            hint = f", such as {unknown[0]!r} on one side only" if unknown else " in another order"
            raise PskdError(
                f"{self.run} knows {len(self.classes)} classes, the data has {len(found.classes)}{hint}:"
                " a model can only be evaluated on the classes it was trained on"
            )
        samples = {"test": found.test, "val": found.val}.get(split)
        if samples is None:
            raise PskdError(f"{self.run} has no validation split; {self.validation_hint}")
        if isinstance(samples, InMemory) and tuple(samples.images.shape[1:]) != (self.view.channels, *self.view.size):
            raise PskdError(
                f"{self.run} sees images of {self.view.channels} x {self.view.size}, these have"
                f" {tuple(samples.images.shape[1:])}"
            )
        seen = replace(samples, view=self.view)  # type: ignore[type-var]
        return caching(config).seen(seen)


def rebuilt_classifier(
    model: dict[str, Any], num_classes: int, channels: int, *, allow_code: bool = False
) -> nn.Module:
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
    settings = config.data
    known = {"name", "root", "val_fraction", "image_size", "num_classes", "per_class", "balance", "workers"}
    known |= {"cache", "shrink", "resize"}
    return data.load(
        settings.name,
        root=settings.root,
        val_fraction=settings.val_fraction,
        seed=config.train.seed,
        image_size=settings.image_size,
        num_classes=settings.num_classes,
        per_class=settings.per_class,
        at_most=config.scale == "laptop",
        **{name: value for name, value in settings.model_dump().items() if name not in known},
    )


def caching(config: Any) -> Caching:
    """How the images of a configuration are prepared and kept."""
    settings = config.data
    return Caching(settings.name, settings.root, settings.cache, settings.shrink, settings.resize)


@torch.no_grad()
def score_split(
    model: nn.Module, samples: Split, num_classes: int, config: Any, device: torch.device, group: Group
) -> Tensor:
    """The log-probabilities (N, K) of all samples, on the CPU, in their order."""
    model.eval()
    batches = samples.batches(
        torch.split(group.share(len(samples), even=is_spread(model)), config.eval.batch_size),
        device=device,
        workers=config.data.workers,
    )
    logits = [model(batch.inputs).float() for batch in batches]
    empty = torch.zeros(0, num_classes)
    return group.gather(torch.log_softmax(torch.cat(logits) if logits else empty, 1).cpu(), len(samples))
