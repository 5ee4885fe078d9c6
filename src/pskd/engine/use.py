"""A finished run put to use: evaluate it again, or let it predict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from pskd.data import View
from pskd.engine import build, weights
from pskd.engine.distributed import Group
from pskd.engine.run import RunFolder
from pskd.errors import PskdError
from pskd.tasks.classification import Classification


class Prediction(NamedTuple):
    """The likeliest classes of one image, most likely first, with their probabilities."""

    image: Path
    classes: list[tuple[str, float]]


def evaluate(run_path: Path, split: str, data_root: str | None = None) -> dict[str, Any]:
    """Metrics of a finished run's model on its test or validation split."""
    run = RunFolder(run_path)
    config = run.config()
    if data_root is not None:
        config = config.model_copy(update={"data": config.data.model_copy(update={"root": data_root})})
    task = Classification(config)
    if split not in ("test", "val") or (split == "val" and not task.has_validation):
        raise PskdError(f"split {split!r} is not there; allowed are test{', val' if task.has_validation else ''}")
    model, _ = weights.restore(run_path)
    device = _device(config.train.device)
    metrics = task.evaluate(model.to(device), split, device, Group()).metrics
    return {**metrics, "ece_bins": config.eval.ece_bins, "num_classes": task.num_classes}


@torch.no_grad()
def predict(run_path: Path, images: Sequence[Path], top: int = 5) -> Iterator[Prediction | PskdError]:
    """The likeliest classes of each image; an image that cannot be read yields its error instead."""
    model, about = weights.restore(run_path)
    classes, view = about["classes"], View.from_dict(about["view"])
    device = _device(RunFolder(run_path).config().train.device)
    model = model.to(device).eval()
    for image in images:
        try:
            pixels = view.open(image)
        except PskdError as error:
            yield error
            continue
        probabilities = torch.softmax(model(view.normalize(pixels[None].to(device))).float(), 1)[0].cpu()
        values, which = probabilities.topk(min(top, len(classes)))
        yield Prediction(image, [(classes[c], p) for c, p in zip(which.tolist(), values.tolist(), strict=True)])


def _device(setting: str) -> torch.device:
    """The run's own device where it is here, else the CPU: a model trained elsewhere can be used anywhere."""
    try:
        on_cpu = build.uses_cpu(setting)
    except PskdError:
        on_cpu = True
    accelerator = None if on_cpu else torch.accelerator.current_accelerator()
    return accelerator or torch.device("cpu")
