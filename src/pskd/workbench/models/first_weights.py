"""Trained weights to begin from: what they were trained on, and how they are copied into a model."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pskd.errors import PskdError

FIRST_WEIGHTS = ("pretrained", "weights", "start")  # options that say where a training begins
HeadLayer = nn.Linear | nn.Conv2d


class Pretraining(NamedTuple):
    """What weights were trained on: the input's side, what the shorter side was scaled to before, and its colours."""

    size: int
    resize: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: int


def find_pretraining(name: str, options: Mapping[str, Any]) -> Pretraining | None:
    """What a library's weights were trained on; None where these options of its model ask for no trained weights."""
    library, _, member = name.partition(":")
    try:
        if library == "torchvision" and options.get("weights") is not None:
            known = import_module("torchvision").models.get_model_weights(member)
            weights = known[str(options["weights"]).rpartition(".")[2]]
            view = weights.transforms()
            size, resize = (side[0] if isinstance(side, list) else side for side in (view.crop_size, view.resize_size))
            return Pretraining(size, resize, tuple(view.mean), tuple(view.std), len(weights.meta["categories"]))
        if library == "timm" and options.get("pretrained"):
            card = import_module("timm").get_pretrained_cfg(member)
            side = card.input_size[1]
            return Pretraining(side, round(side / card.crop_pct), tuple(card.mean), tuple(card.std), card.num_classes)
    except (ImportError, KeyError, ValueError, AttributeError):
        pass  # the builder says what is wrong
    return None


def head_of(model: nn.Module) -> str:
    """The name of the layer that makes the logits."""
    layers = {layer: str(name) for name, layer in model.named_modules() if isinstance(layer, HeadLayer)}
    get_classifier: Any = getattr(model, "get_classifier", None)  # timm's
    head = get_classifier() if callable(get_classifier) else None
    if isinstance(head, HeadLayer) and head in layers:
        return layers[head]
    if not layers:
        raise PskdError(f"{type(model).__name__} has no linear layer or convolution that could be its head")
    return list(layers.values())[-1]


def copy_weights(tensors: Mapping[str, Tensor], model: nn.Module, what: str, *, new_head: bool) -> bool:
    """Copy trained tensors into a model. Return whether its head is left as it was, since its classes are others.

    ``new_head`` leaves the head out in any case. Where the first layer sees another number of colours, its filters are
    added up, or spread evenly. ``what`` names the tensors in messages.
    """
    state, head = model.state_dict(), f"{head_of(model)}."
    first = next((f"{name}.weight" for name, layer in model.named_modules() if isinstance(layer, nn.Conv2d)), None)
    in_head = {name for name in state if name.startswith(head)}
    new_head |= any(name in tensors and tensors[name].shape != state[name].shape for name in in_head)
    copied = {name: value for name, value in tensors.items() if not (new_head and name.startswith(head))}
    filled = {value.data_ptr() for name, value in state.items() if name in copied}  # tied weights are stored once
    for name, value in state.items():
        if name not in copied and not (new_head and name in in_head) and value.data_ptr() not in filled:
            raise PskdError(f"{what} does not fit this model: it has no {name}")
    for name, value in copied.items():
        if name not in state:
            raise PskdError(f"{what} does not fit this model, which has no {name}")
        if name == first and value.ndim == 4 and value.shape[1] != state[name].shape[1]:
            value = adapt_channels(value, state[name].shape[1])
        if value.shape != state[name].shape:
            theirs, ours = (" x ".join(map(str, shape)) for shape in (value.shape, state[name].shape))
            raise PskdError(f"{what} does not fit this model: {name} is {theirs}, here {ours}")
        with torch.no_grad():
            state[name].copy_(value)
    return new_head


def adapt_channels(filters: Tensor, channels: int) -> Tensor:
    """Filters (O, C, H, W) for another number of channels. To a grey image they answer as before."""
    if channels == 1:
        return filters.sum(1, keepdim=True)
    return filters[:, torch.arange(channels) % filters.shape[1]] * (filters.shape[1] / channels)


def tensors_only() -> AbstractContextManager[None]:
    """Inside, files that a library reads may hold tensors, and no code."""
    return _set(os.environ, "TORCH_FORCE_WEIGHTS_ONLY_LOAD", "1")


def cache_only() -> AbstractContextManager[None]:
    """Inside, the Hub's library looks into its cache only, and not first for something newer."""
    from huggingface_hub import constants

    return _set(vars(constants), "HF_HUB_OFFLINE", True)


@contextlib.contextmanager
def _set(values: MutableMapping[str, Any], name: str, value: Any) -> Iterator[None]:
    before = values.get(name)
    values[name] = value
    try:
        yield
    finally:
        if before is None:
            del values[name]
        else:
            values[name] = before
