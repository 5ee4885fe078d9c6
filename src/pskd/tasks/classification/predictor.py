"""A finished classification run put to work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pskd import data, models, registry
from pskd.config import Config
from pskd.data import ImageData, InMemory, Split, View
from pskd.errors import PskdError, one_line
from pskd.metrics import functional
from pskd.runs.group import Group
from pskd.runs.sharding import is_spread
from pskd.runs.trust import plain_options
from pskd.tasks.predictor import About, Answer, Predictor


class AboutClassifier(About):
    """The model's name and options, its classes, and what it sees of an image (``View.to_dict``)."""

    classes: tuple[str, ...]
    view: dict[str, Any]


class Prediction(Answer):
    """The likeliest classes of one image, most likely first, with their probabilities."""

    def __init__(self, image: str, classes: list[tuple[str, float]]) -> None:
        self.image, self.classes = image, classes

    def text(self) -> str:
        lines = (f"  {share:7.2%}  {one_line(name)}" for name, share in self.classes)
        return "\n".join([one_line(self.image), *lines])

    def to_dict(self) -> dict[str, Any]:
        return {"image": self.image, "classes": self.classes}


class ClassPredictor(Predictor):
    """An image classifier with its classes and its view of an image."""

    about_class = AboutClassifier
    options = frozenset({"top"})

    @property
    def classes(self) -> tuple[str, ...]:
        classes: tuple[str, ...] = self.about.classes
        return classes

    @property
    def view(self) -> View:
        return View.from_dict(self.about.view)

    @classmethod
    def build(cls, about: AboutClassifier, *, allow_code: bool = False) -> nn.Module:
        model = about.model
        if about.version is None and model.get("name") == "preact_resnet18":
            model = {"shortcut": "raw", **model}  # what this name meant in 0.1
        channels = View.from_dict(about.view).channels
        return rebuilt_classifier(model, len(about.classes), channels, allow_code=allow_code)

    @torch.no_grad()
    def predict(self, inputs: Sequence[str], top: int = 5, **_: Any) -> Iterator[Prediction | PskdError]:
        """The ``top`` likeliest classes of each image file."""
        if not inputs:
            raise PskdError("which images? for example: pskd predict RUN photo.jpg")
        classes, view = self.classes, self.view
        for image in inputs:
            try:
                pixels = view.open(Path(image))
            except PskdError as error:
                yield error
                continue
            logits = self.model(view.normalize(pixels[None].to(self.device))).float()
            values, which = torch.softmax(logits, 1)[0].cpu().topk(min(top, len(classes)))
            yield Prediction(image, [(classes[c], p) for c, p in zip(which.tolist(), values.tolist(), strict=True)])

    def evaluate(self, config: Config, split: str, group: Group) -> dict[str, Any]:
        samples = self.split(config, split)
        scored = score_split(self.model, samples, len(self.classes), config, self.device, group)
        return functional.summarize(functional.score_samples(scored, samples.labels), config.eval.ece_bins)

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
            allowed = "test" if found.val is None else "test, val"
            raise PskdError(f"split {split!r} is not there; allowed are {allowed}")
        if isinstance(samples, InMemory) and tuple(samples.images.shape[1:]) != (self.view.channels, *self.view.size):
            raise PskdError(
                f"{self.run} sees images of {self.view.channels} x {self.view.size}, these have"
                f" {tuple(samples.images.shape[1:])}"
            )
        return replace(samples, view=self.view)  # type: ignore[type-var]


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
    return data.load(
        settings.name,
        root=settings.root,
        val_fraction=settings.val_fraction,
        seed=config.train.seed,
        image_size=settings.image_size,
        num_classes=settings.num_classes,
        per_class=settings.per_class,
        **{name: value for name, value in settings.model_dump().items() if name not in known},
    )


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
