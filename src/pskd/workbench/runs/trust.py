"""What a run folder may say. It may come from a stranger: so it says what a model is and where data lies, but never
what is loaded, fetched or run, and no place outside of itself to write to.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from pskd.errors import PskdError
from pskd.workbench import config as configuration
from pskd.workbench.config import Config
from pskd.workbench.models.first_weights import FIRST_WEIGHTS

# Words in the names of options by which libraries are told what to load, fetch or run.
_LOADING = re.compile(
    "adapter|archive|cache|cfg|checkpoint|ckpt|code|dir|download|endpoint|file|filename|folder|hf|hub|implementation"
    "|kernels?|local|overlay|path|pretrained|proxies|remote|repo|revision|root|safetensors|source|start|state|url|weights"
)
_SWITCHES = re.compile("code|download|hub|kernels|pretrained|remote")  # with these a plain "true" loads something
_OWN_CODE = ("eager", "sdpa")  # implementations of attention that are torch's or the library's own
_OWN_PLACES = {"data.cache": "auto"}  # what stands for a place of this user's, to which any folder may lead
_OWN_TRACKERS = ("tensorboard",)  # which write into the run's folder alone; others send, or write to the current one
_ADD = "add {}, or --allow-code if you trust the folder, to do so"
_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,60}")
_TEXT = re.compile(r"[A-Za-z0-9_]{1,40}")


def plain_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a model that a folder names: numbers and simple names only, and none that loads anything.

    What only says where the first weights came from is left out: the folder holds those that came of them.
    """
    kept = {}
    for name, value in options.items():
        if not _KEY.fullmatch(str(name)):
            raise PskdError(f"model.{name}: a run folder may name options by letters, digits and _ only")
        if not _loads(name, value):
            if not _is_plain(value):
                raise PskdError(f"model.{name}: a run folder may hold numbers and simple names only")
            kept[name] = value
        elif name not in FIRST_WEIGHTS or not isinstance(value, str | bool):
            raise PskdError(f"model.{name}: a run folder may not name what a model loads")
    return kept


def sandboxed(config: Config, *, allow_code: bool = False) -> tuple[Config, dict[str, str]]:
    """A folder's own configuration without what reaches out of the folder, and a line on each setting left out.

    Nothing is downloaded on a folder's word, and nothing written elsewhere or sent unless the folder is trusted.
    """
    notes: dict[str, str] = {}
    if getattr(config.data, "download", False):
        config = config.model_copy(update={"data": config.data.model_copy(update={"download": False})})
    for setting in () if allow_code else sorted(configuration.written(config)):
        section, name = setting.split(".")
        old = getattr(config, section)
        if (place := getattr(old, name)) not in (None, _OWN_PLACES.get(setting)):
            config = config.model_copy(update={section: old.model_copy(update={name: None})})
            instead = "images are decoded in each epoch" if section == "data" else "rows stay in RAM"
            notes[setting] = f"{setting}={place} is not written on the folder's word, {instead}: {_ADD.format('it')}"
    told = config.train.trackers
    if not allow_code and (sending := [tracker for tracker in told if tracker not in _OWN_TRACKERS]):
        kept = tuple(tracker for tracker in told if tracker in _OWN_TRACKERS)
        config = config.model_copy(update={"train": config.train.model_copy(update={"trackers": kept})})
        add = _ADD.format(f"train.trackers=[{','.join(told)}]")
        notes["train.trackers"] = f"nothing is sent to {' and '.join(sending)} on the folder's word: {add}"
    return config, notes


def check_model(config: Config, stated: Collection[str] = (), *, begun: bool = False) -> None:
    """Refuse a model that a folder's configuration would load from somewhere; ``stated`` are a user's own settings.

    A run that has ``begun`` goes on with weights of its own, so nothing comes of what it says of its first ones.
    """
    for name, value in config.model.model_dump(exclude={"name", "backbone"}).items():
        if f"model.{name}" in stated or (begun and name in FIRST_WEIGHTS and isinstance(value, str | bool)):
            continue
        if _loads(name, value) or not (_KEY.fullmatch(name) and _is_plain(value)):
            raise PskdError(
                f"model.{name} may load files or code, which is not done on a run folder's word: say it in your"
                f" command, model.{name}=..., or add --allow-code if you trust the folder"
            )


def _loads(name: str, value: Any) -> bool:
    words = [word for word in str(name).lower().split("_") if _LOADING.fullmatch(word)]
    if not words or value is None or value is False or (name.lower() == "attn_implementation" and value in _OWN_CODE):
        return False
    if value is True:
        return any(map(_SWITCHES.fullmatch, words))
    numbers = value if isinstance(value, list | tuple) else [value]
    return not all(isinstance(number, int | float) for number in numbers)  # such as a kernel's size


def _is_plain(value: Any) -> bool:
    items = value if isinstance(value, list | tuple) else [value]
    return all(
        item is None or isinstance(item, bool | int | float) or bool(isinstance(item, str) and _TEXT.fullmatch(item))
        for item in items
    )
