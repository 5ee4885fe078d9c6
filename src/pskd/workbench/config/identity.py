"""The identity of a run: a hash of the settings that its result depends on.

Only settings that differ from their defaults count, so an identity stays the same when a release adds a setting.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Any

from pydantic import BaseModel

from pskd.workbench.config.base import Config
from pskd.workbench.config.classes import places
from pskd.workbench.config.resolve import flat


def identity(
    config: Config, *, keep: Collection[str] = (), also: Mapping[str, Any] | None = None, size: int = 16
) -> str:
    """A hash of the settings. Of those that say only where or how a run is made, only the ones in ``keep`` count."""
    kind: type[BaseModel] = type(config)
    settings = flat(_differing(config, kind.model_construct()))
    where_or_how = (places(config) | {"scale"}) - set(keep)
    hashed = {name: value for name, value in settings.items() if name not in where_or_how} | dict(also or {})
    return hashlib.blake2b(json.dumps(hashed, sort_keys=True).encode(), digest_size=size).hexdigest()


def _differing(section: BaseModel, default: Any) -> dict[str, Any]:
    """The settings that differ from ``default``. Names always count: each method and model has its own defaults."""
    dumped, differing = section.model_dump(mode="json"), {}
    for name, value in section:
        if isinstance(value, BaseModel):
            own = getattr(default, name, None)
            differing[name] = _differing(value, own if type(own) is type(value) else type(value).model_construct())
        elif name in ("name", "task") or value != getattr(default, name, Ellipsis):
            differing[name] = dumped[name]
    return differing
