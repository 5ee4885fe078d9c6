"""Image classification."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from pskd import data, models
from pskd.augment import Augment
from pskd.config import Config
from pskd.data import Batch
from pskd.engine.distributed import Group
from pskd.engine.plan import Step, epoch_plan
from pskd.methods.base import Loss, Method
from pskd.metrics import functional
from pskd.tasks.base import Evaluation, Task


class Classification(Task):
    """Images in, one of K classes out."""

    unit = "img"
    selects_by = "top1_error"

    def __init__(self, config: Config) -> None:
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
        self.augment = Augment(self.data.view, **config.augment.model_dump())
        self.num_classes = len(self.data.classes)
        self.num_samples = len(self.data.train)
        self.fingerprint = self.data.train.fingerprint
        self.has_validation = self.data.val is not None

    def model(self) -> nn.Module:
        settings = self.config.model
        return models.create(settings.name, self.num_classes, self.data.view.channels, **settings.options)

    def plan(self, epoch: int, group: Group) -> list[Step]:
        train = self.config.train
        return epoch_plan(
            self.num_samples, train.batch_size, train.accumulate, train.seed, epoch, rank=group.rank, world=group.world
        )

    def batches(self, plan: Sequence[Step], epoch: int, device: torch.device) -> Iterator[Batch]:
        return self.data.train.batches(
            [part for step in plan for part in step.parts],
            augment=self.augment,
            seed=self.config.train.seed,
            epoch=epoch,
            device=device,
            workers=self.config.data.workers,
        )

    def loss(self, model: nn.Module, batch: Batch, real: int, method: Method) -> Loss:
        given: dict[str, Any] = {}
        if "index" in method.needs:
            given["index"] = batch.index
        if "inputs" in method.needs:
            given["inputs"] = batch.inputs
        if real == 0:
            given["distilled"] = torch.zeros(len(batch.index), dtype=torch.bool, device=batch.labels.device)
        return method.loss(model(batch.inputs), batch.labels, **given)

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
        return Evaluation(metrics, {"probs": log_probs.exp().numpy(), "labels": samples.labels.numpy()})

    def metadata(self) -> dict[str, Any]:
        return {
            "task": "classification",
            "model": {"name": self.config.model.name, **self.config.model.options},
            "classes": list(self.data.classes),
            "view": self.data.view.to_dict(),
        }
