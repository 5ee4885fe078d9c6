"""The settings that all tasks share. Each task adds its own in its room."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal, NamedTuple

import yaml
from pydantic import BaseModel, ConfigDict, SerializeAsAny, field_validator, model_validator

from pskd.settings import Count, How, NotNegative, Place, Positive, Range, Share

END = "# end of settings\n"  # the last line of a complete file
Side = Annotated[int, Range(ge=1, le=16_384)]  # of an image, in pixels
Processes = Annotated[int, Range(ge=0, le=512)]
Seed = Annotated[int, Range(ge=0), Range(lt=2**63)]


class Section(BaseModel):
    """Settings that belong together.

    A field marked ``Place()`` or ``How()`` says only where something is, or how the run is made, not what is learnt: a
    run can be resumed with another value.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class MethodConfig(Section):
    """`name` is the method's; its other settings are keywords of its constructor and its memory, listed below.

    `weight=balanced` weights each class in inverse proportion to its number of training samples. `teacher`, of methods
    that have one, is the folder of a finished run.
    """

    model_config = ConfigDict(frozen=True, extra="allow")
    name: str
    weight: Literal["balanced"] | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The method's own settings: all but its name and what is computed from the data."""
        return self.model_dump(exclude={"name", "weight"})


class DataConfig(Section):
    """The settings of all data; a task's class adds its own, and so do the keywords of the function that loads it."""

    name: str
    root: Annotated[str | None, Place()] = None


class ModelConfig(Section):
    """`name` is the model's; every other key is an option of that model."""

    model_config = ConfigDict(frozen=True, extra="allow")
    # Built-in names only: pydantic before 2.14 resolves them in the modules of subclasses.
    __pydantic_extra__: dict[str, bool | int | float | str | list[bool | int | float | str | None] | None]
    name: str

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class OptimConfig(Section):
    """`milestones` and `warmup` are epochs; a number below 1 is a share of all epochs.

    `warmup_steps` replaces `warmup`. After the warm-up `inverse_sqrt` falls with the square root of the steps, and
    `cyclic` repeats `cosine` `cycles` times. The head has the learning rate `lr`, all other weights `backbone_lr`
    (without it, `lr`); both follow the schedule.
    """

    name: Literal["sgd", "adamw"] = "sgd"
    lr: Positive = 0.1
    backbone_lr: Positive | None = None
    momentum: Share = 0.9
    nesterov: bool = True
    betas: tuple[Share, Share] = (0.9, 0.999)
    weight_decay: NotNegative = 5e-4
    schedule: Literal["multistep", "cosine", "cyclic", "inverse_sqrt", "constant"] = "multistep"
    milestones: tuple[NotNegative, ...] = (0.5, 0.75)
    gamma: Share = 0.1
    cycles: Count = 4
    warmup: NotNegative = 0.0
    warmup_steps: Count | None = None

    @model_validator(mode="after")
    def _check(self) -> OptimConfig:
        if self.schedule == "inverse_sqrt" and not (self.warmup or self.warmup_steps):
            raise ValueError("schedule=inverse_sqrt needs warmup_steps, or warmup in epochs")
        return self

    def factor(self, progress: float, epochs: int, steps_per_epoch: int = 1) -> float:
        """The factor of the learning rate after ``progress`` epochs. It has no state, so a resume needs none."""
        warmup = self.warmup_steps / steps_per_epoch if self.warmup_steps else _epochs(self.warmup, epochs)
        if progress < warmup:
            return (progress + 1e-8) / warmup
        if self.schedule in ("cosine", "cyclic"):
            done = (progress - warmup) / max(1e-8, epochs - warmup)
            done = done * self.cycles % 1.0 if self.schedule == "cyclic" else done
            return (1 + math.cos(math.pi * done)) / 2
        if self.schedule == "inverse_sqrt":
            return math.sqrt(warmup / progress)
        if self.schedule == "multistep":
            return self.gamma ** sum(progress >= _epochs(m, epochs) for m in self.milestones)
        return 1.0


class Interval(NamedTuple):
    number: float
    unit: str


class TrainConfig(Section):
    """`batch_size` is the number of samples of one optimizer step, in all processes; `accumulate` cuts it into parts.

    `average=N` averages, at the end, the weights that the last N epochs ended with. `ema=0.999` averages the weights
    over all steps instead: each step's weights count with a share of 1 - ema (more in the first steps). The averaged
    weights are evaluated and saved.
    `patience` stops a training after that many epochs without a new best one on the validation split.
    `threads` are the CPU threads of a process, by default torch's choice, and never more than there are cores. One is
    best for tiny models and on a shared machine, since threads wait for each other in every operation.
    `on_nonfinite` says what a loss of NaN or infinity does: stop the run, or skip the step (each step then waits for
    the device).
    `save_every` is a number of epochs, minutes or steps between checkpoints; `auto` is 2 minutes, or more where
    checkpoints would take over 1% of the time.
    `shard` spreads weights, gradients and optimizer state over the processes (FSDP) instead of copying them to each.
    `calibrate` does at the end what `pskd calibrate` does, on the validation split.
    `freeze=backbone` trains the head only; the batch statistics of the other layers do not change.
    `history` records the probabilities of every training sample in every epoch, 7 bytes each.
    """

    epochs: Count = 300
    batch_size: Count = 128
    seed: Seed = 0
    device: Annotated[str, How()] = "auto"
    threads: Annotated[Annotated[int, Range(ge=1, le=1024)] | None, How()] = None
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    accumulate: Annotated[int, Range(ge=1, le=100_000)] = 1
    clip_norm: Positive | None = None
    on_nonfinite: Literal["stop", "skip"] = "stop"
    average: Count = 1
    ema: Annotated[float, Range(gt=0, lt=1)] | None = None
    patience: Count | None = None
    channels_last: bool = True
    compile: bool = False
    shard: Annotated[bool, How()] = False
    save_every: Annotated[str, How()] = "auto"
    keep_last: Annotated[Count, How()] = 2
    freeze: Literal["none", "backbone"] = "none"
    history: bool = True
    calibrate: Annotated[bool, How()] = False
    trackers: Annotated[tuple[Literal["tensorboard", "wandb", "mlflow"], ...], How()] = ()

    @field_validator("save_every", mode="before")
    @classmethod
    def _save_every(cls, value: Any) -> str:
        if value == "auto":
            return "auto"
        interval = _interval(str(value))
        return f"{interval.number:.12g} {interval.unit}"

    @model_validator(mode="after")
    def _check(self) -> TrainConfig:
        if self.accumulate > self.batch_size:
            raise ValueError(f"accumulate={self.accumulate} parts of a batch_size of {self.batch_size}: take fewer")
        if self.ema is not None and self.average > 1:
            raise ValueError("ema and average are two ways to average weights: leave one out")
        return self

    @property
    def save_interval(self) -> Interval:
        return _interval("2 minutes" if self.save_every == "auto" else self.save_every)


class EvalConfig(Section):
    batch_size: Count = 512
    every: Count = 1
    ece_bins: Annotated[int, Range(ge=1, le=1_000_000)] = 10


class Config(Section):
    """All settings of one run."""

    recipe: Annotated[str | None, Place()] = None
    scale: Literal["full", "laptop"] = "full"
    task: str
    data: DataConfig
    model: ModelConfig
    method: SerializeAsAny[MethodConfig]
    optim: OptimConfig = OptimConfig()
    train: TrainConfig = TrainConfig()
    eval: EvalConfig = EvalConfig()

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False) + END


class UncheckedData(DataConfig):
    model_config = ConfigDict(frozen=True, extra="allow")


class UncheckedConfig(Config):
    """A run whose task is a user's own code: its settings can be read and shown without importing that code."""

    data: UncheckedData
    augment: dict[str, Any] = {}


def _epochs(value: float, epochs: int) -> float:
    return value * epochs if value < 1 else value


def _interval(text: str) -> Interval:
    match = re.fullmatch(r"\s*(\d{1,12}(?:\.\d{1,12})?)\s*(epoch|minute|step)?s?\s*", text)
    if not match or not 1e-6 <= float(match[1]) < 1e12:
        raise ValueError("write auto, '1 epoch', '10 minutes', '500 steps' or another number of them")
    return Interval(float(match[1]), f"{match[2] or 'epoch'}s")
