"""A model spread over the processes (FSDP): each keeps a part of the weights, gradients and optimizer state.

Checkpoints always hold whole tensors, so a run can be resumed with or without spreading.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from pskd.errors import PskdError
from pskd.workbench.config import Config

KERNELS = ("foreach", "fused")  # settings of an optimizer that change how a step is computed, not its result
SMALLEST = 0.01  # a part of the model with a smaller share of the weights is not gathered on its own


def check(config: Config) -> None:
    """Refuse settings that need the whole model in one process; the task and the method have checks of their own."""
    if os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true":
        raise PskdError("this was launched with accelerate's own FSDP: launch it without, and set train.shard=true")
    if not config.train.shard:
        return
    problem = None
    if config.train.average > 1 or config.train.ema is not None or config.train.compile:
        problem = "train.average, train.ema and train.compile need the whole model"
    elif config.train.precision == "fp16":
        problem = "processes would scale their parts of the gradients differently, take train.precision=bf16"
    if problem is not None:
        raise PskdError(f"train.shard=true: {problem}")


def shard(model: nn.Module, device: torch.device, world: int) -> None:
    """Spread the weights of ``model`` over all processes, in place.

    While it runs, its large parts (elements of lists and sequences) are gathered one after the other.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (world,))
    least = SMALLEST * _size(model)
    sequences = [module for module in model.modules() if isinstance(module, nn.Sequential | nn.ModuleList)]
    for sequence in reversed(sequences):
        for part in sequence:
            if _size(part) >= least:
                fully_shard(part, mesh=mesh)
    fully_shard(model, mesh=mesh)


def is_spread(model: nn.Module) -> bool:
    return any(map(_is_spread, model.parameters()))


def whole(tree: Any) -> Any:
    """``tree`` with whole tensors on the CPU in place of spread ones. All processes have to call it."""
    return tree_map(lambda leaf: leaf.full_tensor().cpu() if _is_spread(leaf) else leaf, tree)


def load_model(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load whole weights into a model that may be spread."""
    own = model.state_dict()
    model.load_state_dict({name: _spread(value, own.get(name)) for name, value in state.items()})


def load_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Load a whole state into an optimizer whose weights may be spread; it keeps its own ``KERNELS``."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    entries = {
        number: {name: _spread(value, parameters[number]) for name, value in entry.items()}
        for number, entry in state["state"].items()
    }
    pairs = zip(optimizer.param_groups, state["param_groups"], strict=True)
    groups = [{**stored, **{name: own[name] for name in KERNELS if name in own}} for own, stored in pairs]
    optimizer.load_state_dict({"state": entries, "param_groups": groups})


def _spread(value: Any, like: Any) -> Any:
    """This process's part of a whole tensor if ``like`` is spread; anything else unchanged."""
    if not _is_spread(like) or not isinstance(value, Tensor) or value.shape != like.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def _is_spread(value: Any) -> bool:
    return hasattr(value, "full_tensor")  # a DTensor; to import its class takes long


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
