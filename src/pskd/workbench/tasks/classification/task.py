"""What a batch, a loss and an evaluation of image classification are."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from pskd import __version__
from pskd.errors import PskdError, printable
from pskd.memory.snapshot import unwrap_model
from pskd.methods.base import Loss, Method
from pskd.methods.cs_kd import SameClassPartners
from pskd.methods.dlb import DLB
from pskd.metrics import functional
from pskd.plan import Step, Stretch
from pskd.targets import Targets
from pskd.workbench import registry
from pskd.workbench.augment import Augment
from pskd.workbench.augment.mix import Mix
from pskd.workbench.data.splits import typical_side
from pskd.workbench.models.first_weights import head_of
from pskd.workbench.models.heads import HeadedNet, HeadedOutput, deployed
from pskd.workbench.runs.balance import balanced
from pskd.workbench.runs.group import Group
from pskd.workbench.space import check_fits
from pskd.workbench.tasks.base import Evaluation, Shown, Task
from pskd.workbench.tasks.classification.predictor import ClassPredictor, caching, load_data, score_split
from pskd.workbench.tasks.classification.settings import ClassificationConfig
from pskd.workbench.tasks.classification.start import as_trained, begun_classifier, resumed_classifier
from pskd.workbench.tasks.predictor import Predictor


class TrainingBatch(NamedTuple):
    """Augmented and mixed: class indices or pairs ``(a, b, lam)``, who may be distilled.

    And where a method needs them, same-class partners, and another view of the images, not mixed.
    """

    inputs: Tensor
    targets: Targets
    index: Tensor  # type: ignore[assignment]
    distilled: Tensor | None
    partner: Tensor | None
    view: Tensor | None


@registry.tasks.register("classification")
class Classification(Task):
    """Images in, one of K classes out."""

    Config = ClassificationConfig
    Predictor = ClassPredictor
    data_sets = registry.data
    shows_samples = True
    unit = "img"
    selects_by = "top1_error"

    def __init__(self, config: ClassificationConfig) -> None:
        self.config = config
        seen = as_trained(load_data(config), config.model, config.data.image_size)
        self.data = caching(config).of(seen, config.data.workers, lambda line: print(printable(line), flush=True))
        self.num_classes = len(self.data.classes)
        self.num_samples = self.num_rows = len(self.data.train)
        self.fingerprint = self.data.train.fingerprint
        self.has_validation = self.data.val is not None
        if config.data.balance:
            self.shows_samples = False  # not each of them once in an epoch
        changes = config.augment
        kept = ("crop", "pad", "flip", "jitter", "lighting", "clamp", "auto", "erase")
        self.augment = Augment(self.data.view, **{name: getattr(changes, name) for name in kept})
        if changes.crop == "pad" and changes.pad > max(self.data.view.size):
            raise PskdError(f"augment.pad={changes.pad} is larger than the images of {self.data.view.size}")
        self._check_fits()
        if changes.mix == "cutout" and changes.hole > min(self.data.view.size):
            raise PskdError(f"augment.hole={changes.hole} is larger than the images of {self.data.view.size}")
        self.teacher: nn.Module | None = None
        self.partners: SameClassPartners | None = None
        self.shows_views = False
        self.last_view: Callable[[], Tensor | None] = lambda: None
        # Not through DDP: its second forward pass would overwrite buffers that the first one's backward needs.
        self.providers = {
            "index": lambda _, batch: batch.index,
            "inputs": lambda _, batch: batch.inputs,
            "partner_logits": lambda model, batch: unwrap_model(model)(batch.partner),
            "teacher_logits": lambda _, batch: self._teacher_logits(batch.inputs),
            "view": lambda _, batch: batch.view,
            "view_logits": lambda model, batch: _learning(unwrap_model(model), batch.view),
            "last_logits": lambda model, _: _learning(unwrap_model(model), self.last_view()),
            **dict.fromkeys(("head_logits", "head_features")),  # made by the student's own forward pass
        }

    def about(self) -> str:
        found, view = self.data, self.data.view
        counts = {"training": found.train, "validation": found.val, "test": found.test}
        images = ", ".join(f"{len(split):,} {what}" for what, split in counts.items() if split is not None)
        size = "x".join(map(str, view.size))
        about = f"{found.name}: {images} images of {size}, {self.num_classes} classes"
        if self.config.data.noise:
            about += f", {self.config.data.noise:.0%} of the training labels wrong on purpose"
        side = typical_side(found.train)
        if side is not None and side < min(view.size):
            about += f" (enlarged from about {side}; data.image_size={side} trains faster)"
        return about

    def class_counts(self) -> Tensor:
        return self.data.train.labels.bincount(minlength=self.num_classes)

    def _check_fits(self) -> None:
        """Refuse batches of images that are larger than the memory."""
        pixels, train = self.data.view.channels * math.prod(self.data.view.size), self.config.train
        samples = max(min(train.batch_size, self.num_samples) // train.accumulate, 1)
        check_fits(
            2 * 4 * samples * pixels,
            f"a batch of {samples} images of {self.data.view.size} pixels",
            "take a smaller batch_size or data.image_size, or a larger train.accumulate",
        )

    def provide(self, method: Method) -> None:
        super().provide(method)
        changes = self.config.augment
        shares, probability = method.card.shares_mix, changes.mix_probability
        self.mix = Mix(changes.mix, shares, changes.hole, changes.beta, probability, changes.box)
        if "partner_logits" in method.needs:
            self.partners = SameClassPartners(self.data.train.labels, self.config.train.seed)
        self.shows_views = bool(method.needs & {"view", "view_logits"})
        if isinstance(method, DLB):
            self.last_view = lambda: method.last_view
        if "teacher_logits" in method.needs:
            self.teacher = self._load_teacher(getattr(self.config.method, "teacher", None))

    @property
    def sources(self) -> str:
        if self.teacher is None:
            return self.fingerprint
        digest = hashlib.blake2b(self.fingerprint.encode(), digest_size=16)
        for tensor in self.teacher.state_dict().values():
            digest.update(tensor.cpu().flatten().view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def model(self) -> nn.Module:
        settings, classes, channels = self.config.model, self.data.classes, self.data.view.channels
        if self.begins:
            model, self.first_weights = begun_classifier(settings, classes, channels)
        else:
            model = resumed_classifier(settings, classes, channels)
        wanted = registry.methods.find(self.config.method.name).needs
        return HeadedNet(model) if "head_logits" in wanted else model

    def head(self, model: nn.Module) -> nn.Module:
        net = deployed(model)
        return net.get_submodule(head_of(net))

    def plan(self, epoch: int, group: Group, stretches: Sequence[Stretch] = ()) -> list[Step]:
        plan = super().plan(epoch, group, stretches)
        if not self.config.data.balance:
            return plan
        return balanced(plan, self.data.train.labels, self.config.train.seed, epoch)

    def batches(self, plan: Sequence[Step], epoch: int, device: torch.device) -> Iterator[TrainingBatch]:
        parts = [part for step in plan for part in step.parts]
        if self.partners is not None:
            parts = [wanted for part in parts for wanted in (part, self.partners(part, epoch))]
        seed, workers = self.config.train.seed, self.config.data.workers
        read = partial(self.data.train.batches, augment=self.augment, seed=seed, device=device, workers=workers)
        plain = read(parts, epoch=epoch)
        # Numbers of an epoch that never comes, so that no draw is shared with the first view.
        again = read([part for step in plan for part in step.parts], epoch=-1 - epoch) if self.shows_views else None
        for batch in plain:
            partner = None if self.partners is None else next(plain).inputs
            mixed = self.mix(batch.inputs, batch.labels, batch.index, seed=seed, epoch=epoch)
            view = None if again is None else next(again).inputs
            yield TrainingBatch(mixed.images, mixed.targets, batch.index, mixed.distilled, partner, view)

    def loss(self, model: nn.Module, batch: TrainingBatch, real: int, method: Method) -> tuple[Loss, Shown]:
        distilled = batch.distilled
        if real == 0:
            distilled = torch.zeros_like(batch.index, dtype=torch.bool)
        with torch.no_grad():
            given = self.provided(method, model, batch)
        output = model(batch.inputs)
        if isinstance(output, HeadedOutput):
            output, given["head_logits"], given["head_features"] = output
        logits: Tensor = output
        loss = method.loss(logits, batch.targets, distilled=distilled, **given)
        return loss, Shown(batch.index, logits.detach(), batch.targets, batch.distilled)

    def evaluate(self, model: nn.Module, split: str, device: torch.device, group: Group) -> Evaluation:
        samples = self.data.val if split == "val" else self.data.test
        assert samples is not None
        log_probs = score_split(model, samples, self.num_classes, self.config, device, group)
        scores = functional.score_samples(log_probs, samples.labels, from_logits=True)
        metrics = functional.summarize(scores, self.config.eval.ece_bins)
        predictions = {
            "probs": log_probs.exp().numpy(),
            "labels": samples.labels.numpy(),
            "classes": np.array(self.data.classes),
            "fingerprint": np.array(samples.fingerprint),
        }
        return Evaluation(metrics, predictions)

    def metadata(self) -> dict[str, Any]:
        return {
            "task": self.config.task,
            "model": {"name": self.config.model.name, **self.config.model.options},
            "classes": list(self.data.classes),
            "view": self.data.view.to_dict(),
            "version": __version__,
        }

    def _teacher_logits(self, inputs: Tensor) -> Tensor:
        assert self.teacher is not None
        logits: Tensor = self.teacher.to(inputs.device)(inputs)
        return logits

    def _load_teacher(self, folder: str | None) -> nn.Module:
        if folder is None:
            raise PskdError("method.teacher is missing: name the folder of a finished run (of method=hard, usually)")
        teacher = Predictor.from_run(Path(folder), task="classification", device="cpu", calibrated=False)
        assert isinstance(teacher, ClassPredictor)
        if teacher.classes != self.data.classes or teacher.view != self.data.view:
            raise PskdError(
                f"method.teacher={folder} was trained on other classes or images ({len(teacher.classes)}"
                f" classes, here {self.num_classes}): train it on the same data"
            )
        return teacher.model.requires_grad_(False)


@torch.enable_grad()  # what is provided has no gradient otherwise
def _learning(model: nn.Module, images: Tensor | None) -> Tensor | None:
    return None if images is None else model(images)
