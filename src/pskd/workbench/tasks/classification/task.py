"""Image classification: its settings, its batches and its loss."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import model_validator
from torch import Tensor, nn

from pskd import __version__
from pskd.errors import PskdError, printable
from pskd.memory.snapshot import unwrap_model
from pskd.methods.base import Loss, Method
from pskd.methods.cs_kd import SameClassPartners
from pskd.plan import Step, Stretch
from pskd.settings import Count, How, Place, Positive, Range, Share
from pskd.targets import Targets
from pskd.workbench import models, registry
from pskd.workbench.augment import Augment
from pskd.workbench.augment.mix import Mix
from pskd.workbench.config import base
from pskd.workbench.config.base import Config, Processes, Section, Side
from pskd.workbench.data import ImageData, InMemory, View, subsets
from pskd.workbench.data.splits import typical_side
from pskd.workbench.models.first_weights import FIRST_WEIGHTS, copy_weights, find_pretraining, head_of
from pskd.workbench.models.heads import HeadedNet, HeadedOutput, without_heads
from pskd.workbench.runs import weights
from pskd.workbench.runs.balance import balance_plan
from pskd.workbench.runs.group import Group
from pskd.workbench.space import check_fits
from pskd.workbench.tasks.base import Shown, Task
from pskd.workbench.tasks.classification.predictor import ClassPredictor, image_cache, load_data
from pskd.workbench.tasks.predictor import Predictor, splits_of


class ClassificationDataConfig(base.DataConfig):
    """`name` is digits, cifar10, cifar100, fashion_mnist, imagenet, folder, npz, table or hf:NAME.

    `root` is its folder or file. `val_fraction` of the training set becomes the validation split. `image_size` is the
    side of the model's input in pixels; images of one size can only be made smaller. `num_classes` keeps the first
    classes only, `per_class` so many training images of each. `as_stored` does not turn photos upright by their EXIF
    tag. `noise` is the share of training labels that is replaced by another class, for studies; validation and test
    labels stay right. `balance` draws training samples so that all classes come up equally often. `workers` decode
    files.

    `cache` is a folder, or `auto` for one of this user's, in which decoded images are kept for all epochs and runs. It
    sets `shrink=auto` and `resize=torch` unless they are given. `shrink` scales the shorter side of larger images to so
    many pixels before training crops are taken, `auto` to the size that evaluation uses (256 for 224). `resize=torch`
    scales the crops three times as fast as Pillow; values differ by a few of 255. Evaluation sees exactly the same
    images as without.
    """

    name: str = "digits"
    download: Annotated[bool, How()] = False
    val_fraction: Annotated[float, Range(ge=0, lt=1)] = 0.0
    image_size: Side | None = None
    num_classes: Annotated[int, Range(ge=2)] | None = None
    per_class: Count | None = None
    as_stored: bool = False
    noise: Annotated[float, Range(ge=0, lt=1)] = 0.0
    balance: bool = False
    workers: Annotated[Processes, How()] = 2
    cache: Annotated[str | None, Place(written=True)] = None
    shrink: Literal["auto"] | Side | None = None
    resize: Literal["pillow", "torch"] = "pillow"

    @model_validator(mode="before")
    @classmethod
    def _cache_small_images(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and values.get("cache") is not None:
            return {"shrink": "auto", "resize": "torch", **values}
        return values


class ClassificationModelConfig(base.ModelConfig):
    """`name` is one of `pskd.models.names()`, such as resnet20 or densenet121, or torchvision:NAME or timm:NAME.

    `start` is a run folder or a .safetensors file whose weights the model starts with. Every other key is an option of
    the model, such as `model.width=32`, `model.weights=DEFAULT` (torchvision) or `model.pretrained=true` (timm).
    """

    name: str = "resnet8"
    start: str | None = None


class ClassificationAugmentConfig(Section):
    """`crop=pad` pads by `pad` pixels and cuts out the old size; `resized` is ImageNet's random area and ratio.

    `crop=random` takes 7/8 of either side, anywhere: 224 pixels out of 256. `clamp` keeps colours in their range after
    each change of the `jitter`; the authors' code does not.

    `auto=trivial` is TrivialAugment, one random operation on each image. `erase` is the probability of a blank box.

    `mix` is Cutout with a square `hole`, or CutMix or Mixup with lambda ~ Beta(beta, beta), or either of these two for
    each batch. `box=released` makes the sides of CutMix's box even, as the authors' code does; `exact` keeps odd ones.
    `mix_probability` is the probability that a batch is mixed, by default 0.5 for CutMix and 1 for the others. With
    PS-KD and CS-KD each sample is mixed with probability 0.5.
    """

    crop: Literal["pad", "resized", "random", "none"] = "pad"
    pad: Annotated[int, Range(ge=0, le=4096)] = 4
    flip: bool = True
    jitter: Annotated[float, Range(ge=0, le=1_000_000)] = 0.0
    clamp: bool = True
    lighting: Annotated[float, Range(ge=0, le=1_000_000)] = 0.0
    auto: Literal["none", "trivial"] = "none"
    erase: Share = 0.0
    mix: Literal["none", "cutout", "cutmix", "mixup", "mixup_cutmix"] = "none"
    hole: Side = 8
    beta: Positive = 1.0
    box: Literal["exact", "released"] = "exact"
    mix_probability: Share | None = None


class ClassificationConfig(Config):
    task: Literal["classification"] = "classification"
    data: ClassificationDataConfig = ClassificationDataConfig()
    model: ClassificationModelConfig = ClassificationModelConfig()
    augment: ClassificationAugmentConfig = ClassificationAugmentConfig()


class ClassificationBatch(NamedTuple):
    """Augmented and mixed: class indices or pairs ``(a, b, lam)``, who may be distilled.

    If the method needs them: partners of the same class, and another view of the images, which is not mixed.
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
        self.start = None if config.model.start is None else Start(config.model.start)
        data = see_as_trained(load_data(config), config, self.start)
        self.data = image_cache(config).of(data, config.data.workers, lambda line: print(printable(line), flush=True))
        self.splits = splits_of(self.data)
        self.num_classes = len(self.data.classes)
        self.num_samples = self.num_rows = len(self.data.train)
        self.fingerprint = self.data.train.fingerprint
        if config.data.balance:
            self.shows_samples = False  # an epoch does not have each sample once
        changes = config.augment
        self._check_sizes()
        names = ("crop", "pad", "flip", "jitter", "lighting", "clamp", "auto", "erase")
        self.augment = Augment(self.data.view, **{name: getattr(changes, name) for name in names})
        method = registry.methods.find(config.method.name)
        shares, probability = method.card.shares_mix, changes.mix_probability
        self.mix = Mix(changes.mix, shares, changes.hole, changes.beta, probability, changes.box)
        teacher = getattr(config.method, "teacher", None)
        self.teacher = None if teacher is None else self._load_teacher(teacher)
        # Not through DDP: its second forward pass would overwrite buffers that the first one's backward needs.
        self.providers = {
            "index": lambda _, batch: batch.index,
            "inputs": lambda _, batch: batch.inputs,
            "partner_logits": lambda model, batch: unwrap_model(model)(batch.partner),
            "teacher_logits": lambda _, batch: self._teacher_logits(batch.inputs),
            "view": lambda _, batch: batch.view,
            "view_logits": lambda model, batch: _learning(unwrap_model(model), batch.view),
            **dict.fromkeys(("last_logits", "head_logits", "head_features")),  # made in ``loss``
        }

    def about(self) -> str:
        data, view = self.data, self.data.view
        counts = {"training": data.train, "validation": data.val, "test": data.test}
        images = ", ".join(f"{len(split):,} {what}" for what, split in counts.items() if split is not None)
        size = "x".join(map(str, view.size))
        about = f"{data.name}: {images} images of {size}, {self.num_classes} classes"
        if self.config.data.noise:
            about += f", {self.config.data.noise:.0%} of the training labels wrong on purpose"
        side = typical_side(data.train)
        if side is not None and side < min(view.size):
            about += f" (enlarged from about {side}; data.image_size={side} trains faster)"
        return about

    def class_counts(self) -> Tensor:
        return self.data.train.labels.bincount(minlength=self.num_classes)

    def _check_sizes(self) -> None:
        """Refuse changes that are larger than the images, and batches that are larger than the memory."""
        size, changes, train = self.data.view.size, self.config.augment, self.config.train
        if changes.crop == "pad" and changes.pad > max(size):
            raise PskdError(f"augment.pad={changes.pad} is larger than the images of {size}")
        if changes.mix == "cutout" and changes.hole > min(size):
            raise PskdError(f"augment.hole={changes.hole} is larger than the images of {size}")
        samples = max(min(train.batch_size, self.num_samples) // train.accumulate, 1)
        check_fits(
            2 * 4 * samples * self.data.view.channels * math.prod(size),
            f"a batch of {samples} images of {size} pixels",
            "take a smaller batch_size or data.image_size, or a larger train.accumulate",
        )

    def check_method(self, method: Method) -> None:
        super().check_method(method)
        if "teacher_logits" in method.needs and self.teacher is None:
            raise PskdError("method.teacher is missing: name the folder of a finished run (of method=hard, usually)")

    @functools.cached_property
    def partners(self) -> SameClassPartners:
        return SameClassPartners(self.data.train.labels, self.config.train.seed)

    @property
    def sources(self) -> str:
        if self.teacher is None:
            return self.fingerprint
        digest = hashlib.blake2b(self.fingerprint.encode(), digest_size=16)
        for tensor in self.teacher.state_dict().values():
            digest.update(tensor.cpu().flatten().view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def model(self) -> nn.Module:
        settings, num_classes = self.config.model, self.num_classes
        model = models.create(settings.name, num_classes, self.data.view.channels, **settings.options)
        trained = find_pretraining(settings.name, settings.options)
        if self.start is not None:
            new_head = self.start.load_into(model, self.data.classes, settings.options)
            self.first_weights = f"weights of {settings.start}"
        elif trained is not None:
            new_head = trained.classes != num_classes
            self.first_weights = f"weights {settings.options.get('weights', 'pretrained')}"
        else:
            new_head, self.first_weights = False, "new weights"
        if new_head:
            self.first_weights += f" with a new head for {num_classes} classes"
        return self._with_heads(model)

    def resumed_model(self) -> nn.Module:
        return self._with_heads(build_untrained(self.config.model, self.num_classes, self.data.view.channels))

    def _with_heads(self, model: nn.Module) -> nn.Module:
        needs = registry.methods.find(self.config.method.name).needs
        return HeadedNet(model) if "head_logits" in needs else model

    def head(self, model: nn.Module) -> nn.Module:
        net = without_heads(model)
        return net.get_submodule(head_of(net))

    def plan(self, epoch: int, group: Group, stretches: Sequence[Stretch] = ()) -> list[Step]:
        plan = super().plan(epoch, group, stretches)
        if not self.config.data.balance:
            return plan
        return balance_plan(plan, self.data.train.labels, self.config.train.seed, epoch)

    def batches(
        self, plan: Sequence[Step], epoch: int, device: torch.device, needs: Collection[str] = ()
    ) -> Iterator[ClassificationBatch]:
        own = [part for step in plan for part in step.parts]
        partners = "partner_logits" in needs
        seed, workers = self.config.train.seed, self.config.data.workers
        read = partial(self.data.train.batches, augment=self.augment, seed=seed, device=device, workers=workers)
        with_partners = [indices for part in own for indices in (part, self.partners(part, epoch))] if partners else own
        images = read(with_partners, epoch=epoch)
        # The second view has the number of an epoch that never comes, so it shares no random draw with the first one.
        views = read(own, epoch=-1 - epoch) if {"view", "view_logits"} & set(needs) else None
        for batch in images:
            partner = next(images).inputs if partners else None
            mixed = self.mix(batch.inputs, batch.labels, batch.index, seed=seed, epoch=epoch)
            view = None if views is None else next(views).inputs
            yield ClassificationBatch(mixed.images, mixed.targets, batch.index, mixed.distilled, partner, view)

    def loss(self, model: nn.Module, batch: ClassificationBatch, real: int, method: Method) -> tuple[Loss, Shown]:
        distilled = batch.distilled
        if real == 0:
            distilled = torch.zeros_like(batch.index, dtype=torch.bool)
        with torch.no_grad():
            needs = self.provided(method, model, batch)
            if "last_logits" in method.needs:  # such a method has a ``last_view``
                needs["last_logits"] = _learning(unwrap_model(model), getattr(method, "last_view", None))
        output = model(batch.inputs)
        if isinstance(output, HeadedOutput):
            output, needs["head_logits"], needs["head_features"] = output
        logits: Tensor = output
        loss = method.loss(logits, batch.targets, distilled=distilled, **needs)
        return loss, Shown(batch.index, logits.detach(), batch.targets, batch.distilled)

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

    def _load_teacher(self, folder: str) -> nn.Module:
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


def build_untrained(settings: ClassificationModelConfig, num_classes: int, channels: int) -> nn.Module:
    """The model with new weights, whatever the settings say about its first weights."""
    options = {name: value for name, value in settings.options.items() if name not in FIRST_WEIGHTS}
    return models.create(settings.name, num_classes, channels, **options)


class Start:
    """Weights that a model starts with: those of a run, or of any .safetensors file. ``setting`` is model.start."""

    def __init__(self, setting: str) -> None:
        self.setting, path = setting, Path(setting).expanduser()
        if path.suffix != ".safetensors":
            self.file = weights.path_of(path)
            self.about = weights.metadata(self.file)
            return
        if not path.is_file():
            raise PskdError(f"model.start={setting}: there is no such file")
        self.file = path
        try:
            self.about = weights.metadata(path)
        except PskdError:
            self.about = {}  # somebody else's file

    def load_into(self, model: nn.Module, classes: tuple[str, ...], options: Mapping[str, Any]) -> bool:
        """Copy the weights into a model. True: its head stays new, because the classes are others."""
        if given := [option for option in ("pretrained", "weights") if options.get(option)]:
            raise PskdError(f"model.start and model.{given[0]} both say where to begin: leave one out")
        others = self.about.get("classes")
        new_head = others is not None and tuple(others) != classes
        return copy_weights(weights.read(self.file), model, f"model.start={self.setting}", new_head=new_head)


def see_as_trained(data: ImageData, config: ClassificationConfig, start: Start | None) -> ImageData:
    """The data set in the size and the colours that the model's first weights were trained on.

    A given ``data.image_size`` stays, and so does the size of images that are in memory.
    """
    view, settings = data.view, config.model
    if start is not None:
        if (own := start.about.get("view")) is None:
            return data
        before = View.from_dict(own)
        size, resize, mean, std = before.size, before.resize, before.mean, before.std
    elif (trained := find_pretraining(settings.name, settings.options)) is not None:
        size, resize = (trained.size, trained.size), trained.resize if trained.resize > trained.size else None
        mean, std = trained.mean, trained.std
    else:
        return data
    if isinstance(data.train, InMemory) or config.data.image_size is not None:
        size, resize = view.size, view.resize
    if len(mean) != view.channels:
        mean, std = ((sum(values) / len(values),) * view.channels for values in (mean, std))
    return subsets.change_view(data, View(view.channels, size, resize, mean, std, view.as_stored))
