"""Image classification."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from pskd import data, models
from pskd.augment import Augment
from pskd.augment.mix import Mix
from pskd.config import CSKDConfig, TFKDConfig
from pskd.config.classification import ClassificationConfig
from pskd.data import View
from pskd.data.splits import InMemory
from pskd.errors import PskdError
from pskd.memory.snapshot import unwrap_model
from pskd.methods.base import Loss, Method
from pskd.methods.cs_kd import SameClassPartners
from pskd.metrics import functional
from pskd.runs import devices, weights
from pskd.runs.folder import RunFolder
from pskd.runs.group import Group
from pskd.runs.plan import Step
from pskd.targets import Targets
from pskd.tasks.base import Answer, Evaluation, Task


class TrainingBatch(NamedTuple):
    """Augmented and mixed: class indices or pairs ``(a, b, lam)``, who may be distilled, and CS-KD's partners."""

    inputs: Tensor
    labels: Targets
    index: Tensor  # type: ignore[assignment]
    distilled: Tensor | None
    partner: Tensor | None


class Classification(Task):
    """Images in, one of K classes out."""

    unit = "img"
    records_history = True
    selects_by = "top1_error"

    def __init__(self, config: ClassificationConfig) -> None:
        self.config = config
        settings = config.data
        self.data = data.load(
            settings.name,
            root=settings.root,
            download=settings.download,
            val_fraction=settings.val_fraction,
            seed=config.train.seed,
            image_size=settings.image_size,
            num_classes=settings.num_classes,
            per_class=settings.per_class,
        )
        self.num_classes = len(self.data.classes)
        self.num_samples = len(self.data.train)
        self.fingerprint = self.data.train.fingerprint
        self.has_validation = self.data.val is not None
        changes = config.augment
        self.augment = Augment(
            self.data.view, changes.crop, changes.pad, changes.flip, changes.jitter, changes.lighting
        )
        if changes.mix == "cutout" and changes.hole > min(self.data.view.size):
            raise PskdError(f"augment.hole={changes.hole} is larger than the images of {self.data.view.size}")
        shares = config.method.name in ("ps_kd", "cs_kd")
        self.mix = Mix(changes.mix, shares, changes.hole, changes.beta, changes.mix_probability)
        self.teacher = self._load_teacher()
        self.partners = None
        if isinstance(config.method, CSKDConfig):
            self.partners = SameClassPartners(self.data.train.labels, config.train.seed)

    @property
    def sources(self) -> str:
        if self.teacher is None:
            return self.fingerprint
        digest = hashlib.blake2b(self.fingerprint.encode(), digest_size=16)
        for tensor in self.teacher.state_dict().values():
            digest.update(tensor.cpu().flatten().view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def model(self) -> nn.Module:
        settings = self.config.model
        return models.create(settings.name, self.num_classes, self.data.view.channels, **settings.options)

    def batches(self, plan: Sequence[Step], epoch: int, device: torch.device) -> Iterator[TrainingBatch]:
        parts = [part for step in plan for part in step.parts]
        if self.partners is not None:
            parts = [wanted for part in parts for wanted in (part, self.partners(part, epoch))]
        seed = self.config.train.seed
        plain = self.data.train.batches(
            parts, augment=self.augment, seed=seed, epoch=epoch, device=device, workers=self.config.data.workers
        )
        for batch in plain:
            partner = None if self.partners is None else next(plain).inputs
            mixed = self.mix(batch.inputs, batch.labels, batch.index, seed=seed, epoch=epoch)
            yield TrainingBatch(mixed.images, mixed.labels, batch.index, mixed.distilled, partner)

    def loss(self, model: nn.Module, batch: TrainingBatch, real: int, method: Method) -> Loss:
        given: dict[str, Any] = {"index": batch.index, "inputs": batch.inputs, "distilled": batch.distilled}
        if real == 0:
            given["distilled"] = torch.zeros_like(batch.index, dtype=torch.bool)
        with torch.no_grad():
            if "partner_logits" in method.needs:
                # Not through DDP: its second forward pass would overwrite buffers that the first one's backward needs.
                given["partner_logits"] = unwrap_model(model)(batch.partner)
            if "teacher_logits" in method.needs:
                assert self.teacher is not None
                given["teacher_logits"] = self.teacher.to(batch.inputs.device)(batch.inputs)
        logits = model(batch.inputs)
        given = {name: value for name, value in given.items() if name in {"distilled", *method.needs}}
        loss = method.loss(logits, batch.labels, **given)
        if self.history is not None and real:
            self.history.record(batch.index, logits.detach(), batch.labels, batch.distilled)
        return loss

    @torch.no_grad()
    def evaluate(self, model: nn.Module, split: str, device: torch.device, group: Group) -> Evaluation:
        samples = self.data.val if split == "val" else self.data.test
        assert samples is not None
        model.eval()
        batches = samples.batches(
            torch.split(group.share(len(samples)), self.config.eval.batch_size),
            device=device,
            workers=self.config.data.workers,
        )
        logits = [model(batch.inputs).float() for batch in batches]
        empty = torch.zeros(0, self.num_classes)
        log_probs = group.gather(torch.log_softmax(torch.cat(logits) if logits else empty, 1).cpu(), len(samples))
        metrics = functional.summarize(functional.score_samples(log_probs, samples.labels), self.config.eval.ece_bins)
        predictions = {
            "probs": log_probs.exp().numpy(),
            "labels": samples.labels.numpy(),
            "classes": np.array(self.data.classes),
            "fingerprint": np.array(samples.fingerprint),
        }
        return Evaluation(metrics, predictions)

    @property
    def test_fingerprint(self) -> str:  # type: ignore[override]
        return self.data.test.fingerprint

    def picture(self, index: int) -> np.ndarray:
        test = self.data.test
        pixels = test.images[index] if isinstance(test, InMemory) else test.view.open(test.root / test.paths[index])
        return pixels.permute(1, 2, 0).numpy()

    def _load_teacher(self) -> nn.Module | None:
        settings = self.config.method
        if not isinstance(settings, TFKDConfig) or settings.variant == "reg":
            return None
        if settings.teacher is None:
            raise PskdError("method.teacher is missing: name the folder of a finished run (of method=hard, usually)")
        teacher, about = restored(Path(settings.teacher))
        if tuple(about["classes"]) != self.data.classes or View.from_dict(about["view"]) != self.data.view:
            raise PskdError(
                f"method.teacher={settings.teacher} was trained on other classes or images ({len(about['classes'])}"
                f" classes, here {self.num_classes}): train it on the same data"
            )
        return teacher.eval().requires_grad_(False)

    def metadata(self) -> dict[str, Any]:
        return {
            "task": "classification",
            "model": {"name": self.config.model.name, **self.config.model.options},
            "classes": list(self.data.classes),
            "view": self.data.view.to_dict(),
        }


create = Classification


def restored(run: Path) -> tuple[nn.Module, dict[str, Any]]:
    """The model of a finished classification run, on the CPU, and what was saved beside its weights."""

    def made(about: dict[str, Any]) -> nn.Module:
        options = dict(about["model"])
        return models.create(options.pop("name"), len(about["classes"]), about["view"]["channels"], **options)

    return weights.restore(run, made, "classification")


class Prediction(Answer):
    """The likeliest classes of one image, most likely first, with their probabilities."""

    def __init__(self, image: str, classes: list[tuple[str, float]]) -> None:
        self.image, self.classes = image, classes

    def text(self) -> str:
        return "\n".join([self.image, *(f"  {share:7.2%}  {name}" for name, share in self.classes)])

    def to_dict(self) -> dict[str, Any]:
        return {"image": self.image, "classes": self.classes}


@torch.no_grad()
def predict(run: Path, inputs: Sequence[str], top: int = 5, **_: Any) -> Iterator[Prediction | PskdError]:
    """The ``top`` likeliest classes of each image file."""
    if not inputs:
        raise PskdError("which images? for example: pskd predict RUN photo.jpg")
    model, about = restored(run)
    classes, view = about["classes"], View.from_dict(about["view"])
    device = devices.usable_device(RunFolder(run).config().train.device)
    model = model.to(device).eval()
    for image in inputs:
        try:
            pixels = view.open(Path(image))
        except PskdError as error:
            yield error
            continue
        probabilities = torch.softmax(model(view.normalize(pixels[None].to(device))).float(), 1)[0].cpu()
        values, which = probabilities.topk(min(top, len(classes)))
        yield Prediction(image, [(classes[c], p) for c, p in zip(which.tolist(), values.tolist(), strict=True)])
