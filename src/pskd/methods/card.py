"""What the command line wants to know of a method; a loop of one's own needs nothing of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Card:
    """Stands beside a method's class as its ``card``. A method of a user's own need not have one.

    Args:
        title: its name for people; empty: the one it is registered by.
        plain: whether its targets are the labels as they are: the baseline of a comparison.
        shares_mix: whether half of a batch is distilled and the other half mixed, with Cutout, CutMix or Mixup.
        logs: attributes that the record of an epoch shows.
        not_settings: keywords of the constructor that are no settings of a configuration.
        memory: what its memory is always made with, such as ``{"max_age": None}``.
        defaults: of the settings of its memory, where they are not the usual ones.
        takes_run: whether it learns from a finished run, which the setting ``teacher`` names.
        advise: from a method, a line to whoever begins a training that is known to do harm as it is set, or None.
    """

    title: str = ""
    plain: bool = False
    shares_mix: bool = False
    logs: tuple[str, ...] = ()
    not_settings: tuple[str, ...] = ()
    memory: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    takes_run: bool = False
    advise: Callable[[Any], str | None] = lambda method: None
