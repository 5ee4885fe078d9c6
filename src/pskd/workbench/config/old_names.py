"""Settings that had another name until version 0.2.0: folders and recipes are translated, new commands are corrected.

``method.weight`` was a factor of CS-KD, which is ``method.lam`` now; ``method.class_weight`` is ``method.weight`` now.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pskd.errors import PskdError


def with_new_keys(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with dotted keys, by their names of today."""
    return {_new_key(key, value): value for key, value in settings.items()}


def _new_key(key: str, value: Any) -> str:
    if key == "method.weight" and isinstance(value, int | float):
        return "method.lam"
    return "method.weight" if key == "method.class_weight" else key


def refuse_old_names(overrides: Iterable[str]) -> None:
    """Raise where a command line has an old name; the message has the new one."""
    for override in overrides:
        key, _, value = override.partition("=")
        if key == "method.class_weight":
            raise PskdError(f"method.class_weight is called method.weight now: method.weight={value}")
        if key == "method.weight" and value.replace(".", "", 1).isdecimal():
            raise PskdError(f"method.weight is for class weights; CS-KD's factor is method.lam now: method.lam={value}")
