"""What a run folder may decide. It may come from a stranger, so it says what a model is and where its data lie, but
never what is loaded, downloaded or run, and never where to write outside of itself.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from pskd.errors import PskdError
from pskd.workbench import config as configuration
from pskd.workbench.config import Config
from pskd.workbench.models.first_weights import FIRST_WEIGHTS

# Words in the names of options by which libraries are told what to load, download or run.
_LOADING = re.compile(
    "adapter|archive|cache|cfg|checkpoint|ckpt|code|dir|download|endpoint|file|filename|folder|hf|hub|implementation"
    "|kernels?|local|overlay|path|pretrained|proxies|remote|repo|revision|root|safetensors|source|start|state|url|weights"
)
_SWITCHES = re.compile("code|download|hub|kernels|pretrained|remote")  # with these a plain "true" loads something
_OWN_CODE = ("eager", "sdpa")  # implementations of attention that are torch's or the library's own
_OWN_PLACES = {"data.cache": "auto"}  # this value means a place of the user's own, which any folder may name
_OWN_TRACKERS = ("tensorboard",)  # it writes into the run's folder only; others send, or write to the current folder
_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,60}")
_TEXT = re.compile(r"[A-Za-z0-9_]{1,40}")


def plain_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a model that a folder names: numbers and simple names only, and none that loads anything.

    Options that say where the first weights came from are left out: the folder holds the trained weights.
    """
    kept = {}
    for name, value in options.items():
        problem = _problem(name, value)
        if problem is None:
            kept[name] = value
        elif not _is_first_weights(name, value):
            raise PskdError(f"model.{name}: a run folder may {problem}")
    return kept


def check_model(config: Config, stated: Collection[str] = (), *, begun: bool = False) -> None:
    """Refuse a model that a folder's configuration would load from somewhere; ``stated`` are the user's own settings.

    A run that has ``begun`` continues with its own weights, so the setting of its first ones has no effect.
    """
    for name, value in config.model.model_dump(exclude={"name", "backbone"}).items():
        allowed = f"model.{name}" in stated or (begun and _is_first_weights(name, value))
        if not allowed and _problem(name, value) is not None:
            raise PskdError(
                f"model.{name} may load files or code, which a run folder may not decide: set it in your command,"
                f" model.{name}=..., or add --allow-code if you trust the folder"
            )


def sandbox(config: Config, *, allow_code: bool = False) -> tuple[Config, dict[str, str]]:
    """A folder's configuration without what reaches out of the folder, and a note for each setting left out.

    A folder never makes us download. It makes us write elsewhere, or send anything, only if the user trusts it.
    """
    notes: dict[str, str] = {}
    if getattr(config.data, "download", False):
        config = _replace(config, "data", "download", False)
    if allow_code:
        return config, notes
    add = "add it to your command, or --allow-code if you trust the folder"
    for setting in sorted(configuration.written(config)):
        section, name = setting.split(".")
        place = getattr(getattr(config, section), name)
        if place not in (None, _OWN_PLACES.get(setting)):
            config = _replace(config, section, name, None)
            effect = "images are decoded in each epoch" if section == "data" else "records stay in RAM"
            notes[setting] = f"{setting}={place} comes from the folder, so {effect}: {add}"
    trackers = config.train.trackers
    if sending := " and ".join(tracker for tracker in trackers if tracker not in _OWN_TRACKERS):
        config = _replace(config, "train", "trackers", tuple(name for name in trackers if name in _OWN_TRACKERS))
        asked = f"train.trackers=[{','.join(trackers)}]"
        notes["train.trackers"] = f"{asked} comes from the folder, so nothing is sent to {sending}: {add}"
    return config, notes


def _replace(config: Config, section: str, name: str, value: Any) -> Config:
    return config.model_copy(update={section: getattr(config, section).model_copy(update={name: value})})


def _is_first_weights(name: str, value: Any) -> bool:
    return name in FIRST_WEIGHTS and isinstance(value, str | bool)


def _problem(name: str, value: Any) -> str | None:
    """What a folder would have to do instead of giving a model this option."""
    if not _KEY.fullmatch(name):
        return "name options by letters, digits and _ only"
    if _loads(name, value):
        return "not name what a model loads"
    items = value if isinstance(value, list | tuple) else [value]
    plain = (
        item is None or isinstance(item, bool | int | float) or (isinstance(item, str) and _TEXT.fullmatch(item))
        for item in items
    )
    return None if all(plain) else "hold numbers and simple names only"


def _loads(name: str, value: Any) -> bool:
    words = [word for word in name.lower().split("_") if _LOADING.fullmatch(word)]
    if not words or value is None or value is False or (name.lower() == "attn_implementation" and value in _OWN_CODE):
        return False
    if value is True:
        return any(map(_SWITCHES.fullmatch, words))
    numbers = value if isinstance(value, list | tuple) else [value]
    return not all(isinstance(number, int | float) for number in numbers)  # such as a kernel's size
