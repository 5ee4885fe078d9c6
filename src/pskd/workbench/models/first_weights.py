"""Weights to begin from: what they were trained on, where a model's head is, and how they are put into it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pskd.errors import PskdError

FIRST_WEIGHTS = ("pretrained", "weights", "start")  # options that say where a training begins
HeadLayer = nn.Linear | nn.Conv2d


class Trained(NamedTuple):
    """What weights were trained on: the input's side, what the shorter side was scaled to before, and its colours."""

    size: int
    resize: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: int


def trained_on(name: str, options: Mapping[str, Any]) -> Trained | None:
    """What the library says of the weights that these options of its model ask for; None: they ask for none."""
    library, _, member = name.partition(":")
    try:
        if library == "torchvision" and options.get("weights") is not None:
            known = import_module("torchvision").models.get_model_weights(member)
            chosen = known[str(options["weights"]).rpartition(".")[2]]
            seen = chosen.transforms()
            size, resize = (side[0] if isinstance(side, list) else side for side in (seen.crop_size, seen.resize_size))
            return Trained(size, resize, tuple(seen.mean), tuple(seen.std), len(chosen.meta["categories"]))
        if library == "timm" and options.get("pretrained"):
            told = import_module("timm").get_pretrained_cfg(member)
            side = told.input_size[1]
            return Trained(side, round(side / told.crop_pct), tuple(told.mean), tuple(told.std), told.num_classes)
    except (ImportError, KeyError, ValueError, AttributeError):
        pass  # the builder says what is wrong
    return None


def head_of(model: nn.Module) -> str:
    """The name of the layer that makes the logits."""
    layers = {layer: str(name) for name, layer in model.named_modules() if isinstance(layer, HeadLayer)}
    asked: Any = getattr(model, "get_classifier", None)  # timm's
    told = asked() if callable(asked) else None
    if isinstance(told, HeadLayer) and told in layers:
        return layers[told]
    if not layers:
        raise PskdError(f"{type(model).__name__} has no linear layer or convolution that could be its head")
    return list(layers.values())[-1]


def put(tensors: Mapping[str, Tensor], model: nn.Module, what: str, *, new_head: bool) -> bool:
    """Copy trained tensors into a model; says whether its head stayed as it was, for its classes are others.

    ``new_head`` leaves the head out in any case. Where the first layer sees another number of colours, the filters are
    added up, or spread evenly.
    """
    state, head, first = model.state_dict(), f"{head_of(model)}.", _first_filters(model)
    own = [name for name in state if name.startswith(head)]
    new_head |= any(name in tensors and tensors[name].shape != state[name].shape for name in own)
    taken = {name: value for name, value in tensors.items() if not (new_head and name.startswith(head))}
    there = {value.data_ptr() for name, value in state.items() if name in taken}  # tied weights are stored once
    for name, value in state.items():
        if name not in taken and not (new_head and name in own) and value.data_ptr() not in there:
            raise PskdError(f"{what} does not fit this model: it has no {name}")
    for name, value in taken.items():
        if name not in state:
            raise PskdError(f"{what} does not fit this model, which has no {name}")
        if name == first and value.ndim == 4 and value.shape[1] != state[name].shape[1]:
            value = with_channels(value, state[name].shape[1])
        if value.shape != state[name].shape:
            shapes = " x ".join(map(str, value.shape)), " x ".join(map(str, state[name].shape))
            raise PskdError(f"{what} does not fit this model: {name} is {shapes[0]}, here {shapes[1]}")
        with torch.no_grad():
            state[name].copy_(value)
    return new_head


def with_channels(filters: Tensor, channels: int) -> Tensor:
    """Filters (O, C, H, W) for another number of channels, that answer to a grey image as they did."""
    if channels == 1:
        return filters.sum(1, keepdim=True)
    return filters[:, torch.arange(channels) % filters.shape[1]] * (filters.shape[1] / channels)


def _first_filters(model: nn.Module) -> str | None:
    return next((f"{name}.weight" for name, layer in model.named_modules() if isinstance(layer, nn.Conv2d)), None)


@contextlib.contextmanager
def tensors_only() -> Iterator[None]:
    """Files that a library reads may hold tensors, and no code."""
    before = os.environ.get("TORCH_FORCE_WEIGHTS_ONLY_LOAD")
    os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"]
        else:
            os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = before


@contextlib.contextmanager
def cache_only() -> Iterator[None]:
    """The Hub's library looks into its cache, and not first whether there is something newer."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before
