"""Fine-tuning: a classifier that begins with trained weights, and sees images as these were trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from pskd.errors import PskdError
from pskd.workbench import models
from pskd.workbench.data import ImageData, InMemory, View, subsets
from pskd.workbench.models.first_weights import FIRST_WEIGHTS, put, trained_on
from pskd.workbench.runs import weights


def as_trained(data: ImageData, settings: Any, image_size: int | None) -> ImageData:
    """The data set seen in the size and the colours that the model's first weights were trained on.

    An ``image_size`` that was asked for stays, and so do images that are in memory in a size of their own.
    """
    view = data.view
    if settings.start is not None:
        if (own := _about(settings.start).get("view")) is None:
            return data
        before = View.from_dict(own)
        size, resize, mean, std = before.size, before.resize, before.mean, before.std
    elif (trained := trained_on(settings.name, settings.options)) is not None:
        size, resize = (trained.size, trained.size), trained.resize if trained.resize > trained.size else None
        mean, std = trained.mean, trained.std
    else:
        return data
    if isinstance(data.train, InMemory) or image_size is not None:
        size, resize = view.size, view.resize
    if len(mean) != view.channels:
        mean, std = ((sum(values) / len(values),) * view.channels for values in (mean, std))
    return subsets.seen_as(data, View(view.channels, size, resize, mean, std, view.as_stored))


def begun_classifier(settings: Any, classes: tuple[str, ...], channels: int) -> tuple[nn.Module, str]:
    """The model with its first weights, and what to say of them."""
    model = models.create(settings.name, len(classes), channels, **settings.options)
    if settings.start is None:
        trained = trained_on(settings.name, settings.options)
        if trained is None:
            return model, "new weights"
        chosen = settings.options.get("weights", "pretrained")
        return model, f"weights {chosen}{_head(trained.classes != len(classes), len(classes))}"
    if given := [option for option in ("pretrained", "weights") if settings.options.get(option)]:
        raise PskdError(f"model.start and model.{given[0]} both say where to begin: leave one out")
    what, there = f"model.start={settings.start}", _about(settings.start).get("classes")
    tensors = weights.read(_file(settings.start))
    new = put(tensors, model, what, new_head=there is not None and tuple(there) != classes)
    return model, f"weights of {settings.start}{_head(new, len(classes))}"


def resumed_classifier(settings: Any, classes: tuple[str, ...], channels: int) -> nn.Module:
    """The model of a run that goes on with weights of its own: those it began with are not looked for."""
    options = {name: value for name, value in settings.options.items() if name not in FIRST_WEIGHTS}
    return models.create(settings.name, len(classes), channels, **options)


def _head(new: bool, classes: int) -> str:
    return f" with a new head for {classes} classes" if new else ""


def _file(start: str) -> Path:
    path = Path(start).expanduser()
    if path.suffix == ".safetensors" and not path.is_file():
        raise PskdError(f"model.start={start}: there is no such file")
    return path if path.suffix == ".safetensors" else weights.path_of(path)


def _about(start: str) -> dict[str, Any]:
    """What a run has saved beside its weights; of a file of somebody else nothing is known."""
    try:
        return weights.metadata(_file(start))
    except PskdError:
        if Path(start).suffix == ".safetensors" and Path(start).expanduser().is_file():
            return {}
        raise
