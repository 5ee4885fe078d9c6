"""The device that a model is trained or used on."""

from __future__ import annotations

import platform

import torch

from pskd.errors import PskdError


def uses_cpu(device: str) -> bool:
    """Whether a run with this setting belongs on the CPU."""
    available = torch.accelerator.is_available()
    if device == "auto":
        return not available
    kind, sign, _ = device.partition(":")
    if kind == "cpu":
        return True
    if sign:
        raise PskdError(
            f"train.device={device!r}: a card is chosen outside, CUDA_VISIBLE_DEVICES=1 pskd train ...;"
            " allowed are auto, cpu and the kind of device alone"
        )
    if not available or torch.accelerator.current_accelerator().type != kind:  # type: ignore[union-attr]
        raise PskdError(f"train.device={device!r} is not available here; allowed are auto and cpu")
    return False


def usable_device(setting: str) -> torch.device:
    """The run's own device if it is available, else the CPU: a trained model can be used anywhere."""
    try:
        on_cpu = uses_cpu(setting)
    except PskdError:
        on_cpu = True
    accelerator = None if on_cpu else torch.accelerator.current_accelerator()
    return accelerator or torch.device("cpu")


def name_of(device: torch.device) -> str:
    """The name of this device, for result.json."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return (platform.processor() or "cpu") if device.type == "cpu" else str(device)
