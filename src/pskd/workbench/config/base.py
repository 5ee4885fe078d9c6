"""The settings that every task has."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from pskd.settings import How, Place

Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
Side = Annotated[int, Field(ge=1, le=16_384)]  # of an image, in pixels
Processes = Annotated[int, Field(ge=0, le=512)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]


class Section(BaseModel):
    """Some settings that belong together.

    A field marked ``Place()`` or ``How()`` says only where something is, or how the run is made, not what is learnt: a
    run can be resumed with another value.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class MethodConfig(Section):
    """A method's settings: made from its constructor (``config.classes``). Here any are taken, unchecked."""

    model_config = ConfigDict(frozen=True, extra="allow")
    name: str
    weight: Literal["balanced"] | None = None  # class weights in inverse proportion to how many samples each has

    @property
    def options(self) -> dict[str, Any]:
        """What the method itself is told: all settings but its name and what is made of the data."""
        return self.model_dump(exclude={"name", "weight"})


class DataConfig(Section):
    """What every task's data has; the task's own class adds to it, and so do the keywords of what loads it."""

    name: str
    root: Annotated[str | None, Place()] = None


class ModelConfig(Section):
    """`name` is the model's; every other key is an option of that model."""

    model_config = ConfigDict(frozen=True, extra="allow")
    # Without a name of ours: pydantic before 2.14 reads it in the modules of subclasses, which do not have it.
    __pydantic_extra__: dict[str, bool | int | float | str | list[bool | int | float | str | None] | None]
    name: str

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class OptimConfig(Section):
    """`milestones` and `warmup` are epochs; a number below 1 is a share of all epochs.

    `warmup_steps` takes the place of `warmup`. After it `inverse_sqrt` falls with the square root of the steps, and
    `cyclic` is `cosine` so many times in a row, as `cycles` says. `backbone_lr` is the learning rate of all but the
    head, which has `lr`; both follow the schedule.
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
    def _warms_up(self) -> OptimConfig:
        if self.schedule == "inverse_sqrt" and not (self.warmup or self.warmup_steps):
            raise ValueError("schedule=inverse_sqrt needs warmup_steps, or warmup in epochs")
        return self

    def factor(self, progress: float, epochs: int, steps_per_epoch: int = 1) -> float:
        """What the learning rate is multiplied by at ``progress`` epochs: a function, so a resume needs no state."""
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
    """`batch_size` is the samples of one optimizer step over all processes; `accumulate` cuts it into parts.

    `average` is the number of last epochs whose weights, as they were at each one's end, are averaged in the end.

    `ema=0.999` averages the weights over all steps instead, each new one with a share of 1 - ema (more in the first
    steps); the averaged weights are evaluated and saved. `patience` ends a training after so many epochs in which none
    was better than the best so far by the validation split.

    `threads` are the CPU threads of a process, by default torch's choice, and never more than there are cores. One is
    best for tiny models, and on a machine that others use: threads wait for each other in every operation.
    `on_nonfinite` is what a loss of NaN or infinity does: stop the run, or skip the step (each step then waits for the
    device). `save_every` is a number of epochs, minutes or steps between checkpoints; `auto` is 2 minutes, or more
    where they would take over 1% of the time.
    `shard` spreads weights, gradients and optimizer state over the processes (FSDP) instead of copying them to each.
    `calibrate` does in the end what `pskd calibrate` does, on the validation split.
    `freeze=backbone` trains the head alone; batch statistics of the rest stay as they are.
    `history` records the probabilities of every training sample in every epoch, 7 bytes each.
    """

    epochs: Count = 300
    batch_size: Count = 128
    seed: Seed = 0
    device: Annotated[str, How()] = "auto"
    threads: Annotated[Annotated[int, Field(ge=1, le=1024)] | None, How()] = None
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    accumulate: Annotated[int, Field(ge=1, le=100_000)] = 1
    clip_norm: Positive | None = None
    on_nonfinite: Literal["stop", "skip"] = "stop"
    average: Count = 1
    ema: Annotated[float, Field(gt=0, lt=1)] | None = None
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
    def _has_parts(self) -> TrainConfig:
        if self.accumulate > self.batch_size:
            raise ValueError(f"accumulate={self.accumulate} parts of a batch_size of {self.batch_size}: take fewer")
        return self

    @model_validator(mode="after")
    def _one_average(self) -> TrainConfig:
        if self.ema is not None and self.average > 1:
            raise ValueError("ema and average are two ways to average weights: leave one out")
        return self

    @property
    def save_interval(self) -> Interval:
        return _interval("2 minutes" if self.save_every == "auto" else self.save_every)


class EvalConfig(Section):
    batch_size: Count = 512
    every: Count = 1
    ece_bins: Annotated[int, Field(ge=1, le=1_000_000)] = 10


def _epochs(value: float, epochs: int) -> float:
    return value * epochs if value < 1 else value


def _interval(text: str) -> Interval:
    match = re.fullmatch(r"\s*(\d{1,12}(?:\.\d{1,12})?)\s*(epoch|minute|step)?s?\s*", text)
    if not match or not 1e-6 <= float(match[1]) < 1e12:
        raise ValueError("write auto, '1 epoch', '10 minutes', '500 steps' or another number of them")
    return Interval(float(match[1]), f"{match[2] or 'epoch'}s")
