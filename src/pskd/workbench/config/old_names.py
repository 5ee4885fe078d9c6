"""Settings that had another name in an earlier version: folders and recipes are translated, new commands corrected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pskd.errors import PskdError


def with_new_names(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """Settings as they are called today. Until 0.2.0 ``method.weight`` was CS-KD's factor lambda."""
    method = tree.get("method")
    if not isinstance(method, Mapping):
        return tree
    method = dict(method)
    if "class_weight" in method:
        factor, weight = method.pop("weight", None), method.pop("class_weight")
        method |= ({} if weight is None else {"weight": weight}) | ({} if factor is None else {"lam": factor})
    elif isinstance(method.get("weight"), int | float):
        method["lam"] = method.pop("weight")
    return {**tree, "method": method}


def with_new_keys(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The same of settings with dotted keys, as a study file has them."""
    names = {key: _new_key(key, value) for key, value in settings.items()}
    return {names[key]: value for key, value in settings.items()}


def _new_key(key: str, value: Any) -> str:
    if key == "method.weight" and isinstance(value, int | float):
        return "method.lam"
    return "method.weight" if key == "method.class_weight" else key


def refuse_old_names(overrides: Iterable[str]) -> None:
    """Raise where a command line has an old name, with the new one."""
    for override in overrides:
        key, _, value = override.partition("=")
        if key == "method.class_weight":
            raise PskdError(f"method.class_weight is called method.weight now: method.weight={value}")
        if key == "method.weight" and value.replace(".", "", 1).isdecimal():
            raise PskdError(f"method.weight is for class weights; CS-KD's factor is method.lam now: method.lam={value}")
