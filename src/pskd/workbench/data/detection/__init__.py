"""Data sets of images with labelled boxes: what they are, where they come from, and how they are split.

Each is a function from ``Wanted`` to ``DetectionData``, registered by its name in ``registry.scenes``.
"""

from __future__ import annotations

from typing import Any

from pskd.errors import PskdError
from pskd.workbench import registry
from pskd.workbench.data.detection.annotations import DetectionData, Wanted
from pskd.workbench.data.detection.scenes import Scene, SceneSplit

__all__ = ["DetectionData", "Scene", "SceneSplit", "Wanted", "load"]


def load(name: str, **wanted: Any) -> DetectionData:
    """Load the data set ``name``: a registered one, or the user's own code, which was loaded.

    ``wanted`` are the fields of ``Wanted``.
    """
    data = registry.scenes.find(name)(Wanted(**wanted))
    if not isinstance(data, DetectionData):
        raise PskdError(
            f"data={name} must return a pskd.workbench.data.detection.DetectionData, got {type(data).__name__}"
        )
    return data
