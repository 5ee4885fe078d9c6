"""Models of torchvision and timm by prefix; the libraries are imported only when one is asked for."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Collection
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import nn

from pskd.errors import PskdError, installed_by
from pskd.settings import nearest
from pskd.workbench.models.first_weights import HeadLayer, adapt_channels, cache_only, head_of, tensors_only
from pskd.workbench.models.modest import too_large

_NOT_READ = "the file of its weights holds more than tensors, and is not read"
LIBRARIES = {"torchvision": "workbench", "timm": "timm"}  # and the extra that brings each


def create_external(name: str, num_classes: int, in_channels: int, options: dict[str, Any]) -> nn.Module:
    """The model ``library:member`` with random weights; ``options`` go to the library's own builder."""
    library, _, member = name.partition(":")
    try:
        module = import_module(library)
    except ImportError as error:
        raise PskdError(f"model {name!r} needs {library}: {installed_by(LIBRARIES[library])} ({error})") from error
    build = _torchvision if library == "torchvision" else _timm
    try:
        with tensors_only():
            return build(module, member, num_classes, in_channels, options)
    except PskdError:
        raise
    except OSError as error:
        why = str(error).splitlines()[0]
        raise PskdError(
            f"model {name!r}: its weights {options} are not in the cache, or cannot be fetched ({why})"
        ) from error
    except pickle.UnpicklingError as error:
        raise PskdError(f"model {name!r}: {_NOT_READ}") from error
    except (TypeError, ValueError, KeyError, RuntimeError) as error:
        if too_large(error):
            raise  # `build_within_memory` says how much there is
        if "weights_only" in str(error):  # timm raises no UnpicklingError, but advises to switch this off
            raise PskdError(f"model {name!r}: {_NOT_READ}") from error
        why = str(error).splitlines()[0]
        raise PskdError(f"model {name!r} refuses its options {options}: {why}") from error


def _torchvision(
    torchvision: Any, member: str, num_classes: int, in_channels: int, options: dict[str, Any]
) -> nn.Module:
    classifiers = torchvision.models.list_models(module=torchvision.models)
    _check_known("torchvision", member, classifiers)
    if member in ("googlenet", "inception_v3"):  # a second output in training is not what a classifier's loss takes
        options = {"aux_logits": False, "init_weights": True} | options
    model: nn.Module
    if options.get("weights") is None:
        model = torchvision.models.get_model(member, num_classes=num_classes, **options)
    else:
        model = torchvision.models.get_model(member, **options)  # with as many classes as its weights have
        _replace_head(f"torchvision:{member}", model, num_classes)
    if in_channels != 3:
        _take_channels(model, in_channels, trained=options.get("weights") is not None)
    return model


def _timm(timm: Any, member: str, num_classes: int, in_channels: int, options: dict[str, Any]) -> nn.Module:
    _check_known("timm", member.partition(".")[0], timm.list_models())
    build: Callable[[], nn.Module] = partial(
        timm.create_model, member, num_classes=num_classes, in_chans=in_channels, **options
    )
    if options.get("pretrained"):
        with contextlib.suppress(OSError), cache_only():
            return build()
    return build()


def _check_known(library: str, member: str, known: Collection[str]) -> None:
    if member not in known:
        hint = nearest(member, known)
        raise PskdError(f"model '{library}:{member}' is unknown: {library}'s list_models() lists all names{hint}")


def _replace_head(name: str, model: nn.Module, num_classes: int) -> None:
    """Give a trained classifier a new last layer, where it has another number of classes."""
    path = head_of(model)
    last = model.get_submodule(path)
    assert isinstance(last, HeadLayer)
    outputs = last.out_features if isinstance(last, nn.Linear) else last.out_channels
    if outputs == num_classes:
        return
    fresh: nn.Module
    if isinstance(last, nn.Linear):
        fresh = nn.Linear(last.in_features, num_classes, bias=last.bias is not None)
    elif last.kernel_size == (1, 1):
        fresh = nn.Conv2d(last.in_channels, num_classes, 1, bias=last.bias is not None)
    else:
        raise PskdError(f"model {name!r}: its weights are for {outputs} classes, and its last layer cannot be replaced")
    parent, _, child = path.rpartition(".")
    setattr(model.get_submodule(parent), child, fresh)


def _take_channels(model: nn.Module, in_channels: int, trained: bool) -> None:
    """Give the first filters, which torchvision's builders make for 3 channels, another number of channels.

    Random channels are repeated or dropped. Trained ones are added up or spread evenly.
    """
    first = next(module for module in model.modules() if isinstance(module, nn.Conv2d))
    filters = first.weight.detach()
    adapted = adapt_channels(filters, in_channels) if trained else filters[:, torch.arange(in_channels) % 3]
    first.weight = nn.Parameter(adapted)
    first.in_channels = in_channels
