"""The settings of methods, and how a method is made from them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import torch
from torch import Tensor, nn

from pskd.errors import PskdError
from pskd.memory import Memory, PredictionBank, Snapshot
from pskd.methods import Method
from pskd.settings import Count, Place, Positive, Range, Setting, check_arguments, settings_of
from pskd.workbench import registry

DENSE_UP_TO = 1000  # classes; above, form=auto keeps the top k
_BANK = ("form", "k", "dtype", "path")
# The settings of ``build_memory`` by the type of memory that a method takes.
_MEMORY_SETTINGS: dict[Any, tuple[str, ...]] = {
    Memory: ("memory", *_BANK, "momentum", "refresh", "ema"),
    PredictionBank: _BANK,
    Snapshot: ("ema",),
}


@dataclass(frozen=True)
class TrainingInfo:
    """What is known of a training before its first step. A method gets those that its constructor has keywords for.

    Args:
        epochs: the length of the training.
        num_classes: classes of the model.
        num_samples: records that a bank needs: training samples, in translation tokens.
        steps_per_epoch: calls of the method in an epoch.
        model: the model in training.
        fingerprint: identity of the training data.
        path: a scratch file that the processes of this host share; None: there is one process.
        host, hosts: this machine, and how many there are.
        class_weight: (K), the weight of a sample of each class; None: all the same.
        seed: of the run.
    """

    epochs: int
    num_classes: int
    num_samples: int
    steps_per_epoch: int
    model: nn.Module
    fingerprint: str | None
    path: Path | None
    host: int = 0
    hosts: int = 1
    class_weight: Tensor | None = None
    seed: int = 0


def build_memory(
    training: TrainingInfo,
    *,
    memory: Literal["bank", "snapshot"] = "bank",
    form: Literal["auto", "dense", "topk"] = "auto",
    k: Count = 32,
    dtype: Literal["float16", "bfloat16", "float32", "float64"] = "float16",
    path: Annotated[str | None, Place(written=True)] = None,
    momentum: Annotated[float, Range(ge=0, lt=1)] = 0.0,
    refresh: Positive = 1.0,
    ema: Annotated[float | None, Range(ge=0, lt=1)] = None,
    num_classes: int | None = None,
    max_age: int | None = 1,
) -> Memory:
    """Make a method's memory from its settings.

    Args:
        memory: what past predictions come from: "bank", one record per sample, or "snapshot", a copy of the model.
        form: of a bank: "dense" keeps every class, "topk" the likeliest; "auto" is dense up to 1000 classes.
        k: classes that a top-k bank keeps of each sample.
        dtype: of a bank's values.
        path: a scratch file for a bank's records instead of RAM.
        momentum: of a bank: a record becomes momentum * record + (1 - momentum) * prediction. The paper: 0.
        refresh: epochs between two copies of a snapshot.
        ema: of a snapshot: it follows the model, and keeps this share of its own weights in each step, such as 0.99.
        num_classes: of a bank, where it is not the model's.
        max_age: the number of epochs after which a bank's record counts as missing; None: never.
    """
    check_arguments(build_memory, locals())
    if memory == "snapshot" and momentum:
        raise PskdError(f"method.momentum={momentum} is a bank's; with memory=snapshot take method.ema instead")
    if memory == "bank" and ema is not None:
        raise PskdError(f"method.ema={ema} is a snapshot's: add method.memory=snapshot, or take method.momentum")
    if memory == "snapshot":
        return Snapshot(training.model, refresh, training.steps_per_epoch, ema)
    classes = num_classes or training.num_classes
    return PredictionBank(
        training.num_samples,
        classes,
        form=form if form != "auto" else "dense" if classes <= DENSE_UP_TO else "topk",
        k=k,
        dtype=getattr(torch, dtype),
        path=path or training.path,
        fingerprint=training.fingerprint,
        host=training.host,
        hosts=training.hosts,
        max_age=max_age,
        momentum=momentum,
    )


def method_settings(method: type[Method]) -> dict[str, Setting]:
    """What a configuration can set of a method: keywords of its constructor, and those of its memory."""
    card = method.card
    of_training = {field.name for field in fields(TrainingInfo)} | {"memory", "reduction", "weight"}
    settings = settings_of(method, leave_out=of_training.union(card.not_settings))
    if card.takes_run:
        settings["teacher"] = Setting("teacher", Annotated[str | None, Place()], None, required=False)
    for name, setting in settings_of(build_memory, leave_out=card.memory).items():
        if name in _memory_settings(method):
            settings[name] = replace(setting, default=card.defaults.get(name, setting.default))
    return settings


def make_method(name: str, training: TrainingInfo, settings: Mapping[str, Any]) -> Method:
    """Make the method of this name for a training."""
    method: type[Method] = registry.methods.find(name)
    keywords = inspect.signature(method).parameters
    arguments = {field.name: getattr(training, field.name) for field in fields(training) if field.name in keywords}
    if training.class_weight is not None:
        if not method.takes_weight or "weight" not in keywords:
            raise PskdError(f"method={name} takes no class weights: leave method.weight out")
        arguments["weight"] = training.class_weight
    of_memory = {key: value for key, value in settings.items() if key in _memory_settings(method)}
    if "memory" in keywords:
        kind = {"memory": "snapshot"} if _memory_type(method) is Snapshot else {}
        arguments["memory"] = build_memory(
            training, **{**kind, **method.card.defaults, **of_memory, **method.card.memory}
        )
    arguments |= {key: value for key, value in settings.items() if key not in of_memory and key != "teacher"}
    return method(**arguments)


def _memory_type(method: type[Method]) -> Any:
    """The type of memory that a constructor takes, or None."""
    return get_type_hints(method.__init__).get("memory")


def _memory_settings(method: type[Method]) -> tuple[str, ...]:
    return _MEMORY_SETTINGS.get(_memory_type(method), ())
