"""What the files of a run may say: one class for each, by which a file is checked where it is read.

A folder may come from a stranger, a damaged disk or another version. What does not fit is named in one line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pskd.errors import PskdError

Whole = Annotated[int, Field(ge=0, lt=2**62, strict=True)]
Number = Annotated[float, Field(allow_inf_nan=False, strict=True, ge=-1e300, le=1e300)]
Kind = TypeVar("Kind", bound=BaseModel)


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow")

    @model_validator(mode="before")
    @classmethod
    def _numbers(cls, tree: Any) -> Any:
        """What stands beside the known, metrics, is what JSON can say, and numbers are such that can be shown."""
        if isinstance(tree, Mapping):
            for name, value in tree.items():
                if isinstance(value, int | float) and not isinstance(value, bool) and not _is_shown(value):
                    raise ValueError(f"{name} is {str(value)[:20] if isinstance(value, float) else 'too large'}")
                if not _is_json(value):
                    raise ValueError(f"{name} is neither a number nor text")
        return tree


class Metrics(_File):
    """Metrics of a split by name; numbers, or numbers by class."""

    ap_per_class: dict[str, float | None] = {}
    ap_per_class_11point: dict[str, float | None] = {}


class Seconds(_File):
    training: Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
    per_epoch: Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)] | None


class Best(_File):
    epoch: Whole
    val: Metrics


class Result(Metrics):
    """result.json: metrics on the test split, and where they come from."""

    epoch: Whole
    seed: Whole
    ece_bins: Whole
    num_classes: Whole
    training_samples: Whole | None = None
    parameters: Whole
    seconds: Seconds
    processes: Whole
    device: str
    versions: dict[str, str]
    git: str | None
    data_fingerprint: str
    signatures: dict[str, str] = {}
    val: Metrics = Metrics()
    best: Best | None = None


class Epoch(_File):
    """A line of metrics.jsonl."""

    epoch: Whole
    train_loss: Number | None = None
    loss_parts: dict[str, Number] = {}
    val: Metrics = Metrics()
    test: Metrics = Metrics()


class Progress(BaseModel):
    """Where a checkpoint's training was."""

    epoch: Whole
    step: Whole
    skipped: Whole
    skips_in_a_row: Whole
    best: Best | None
    best_sum: str | None = None
    epoch_seconds: list[Number]
    seconds: Number
    stretches: list[Annotated[list[Whole], Field(min_length=2, max_length=2)]]
    sources: str
    settings: str | None = None
    world: Annotated[int, Field(ge=1, le=10**6, strict=True)]


class Manifest(BaseModel):
    """The checksums of a checkpoint's files."""

    files: dict[str, str]
    sizes: dict[str, Whole] = {}


def checked(kind: type[Kind], tree: Any, path: Path | str, advice: str) -> Kind:
    """The tree as its class, or what is wrong with it in one line."""
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        raise PskdError(f"{path} is damaged ({first_error(error)}): {advice}") from None


def first_error(error: ValidationError) -> str:
    """The first thing that is wrong: where, and what."""
    first = error.errors(include_input=False, include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])[:80]
    why = first["msg"].removeprefix("Value error, ")
    return f"{where}: {why[0].lower()}{why[1:]}" if where else f"{why[0].lower()}{why[1:]}"


def _is_json(value: Any, depth: int = 10) -> bool:
    """Whether it is plain: a checkpoint, unlike a file of JSON, may hold tensors at any place."""
    if isinstance(value, dict):
        return depth > 0 and all(isinstance(key, str) and _is_json(item, depth - 1) for key, item in value.items())
    if isinstance(value, list | tuple):
        return depth > 0 and all(_is_json(item, depth - 1) for item in value)
    return value is None or isinstance(value, str | int | float)


def _is_shown(value: float) -> bool:
    return (isinstance(value, int) and abs(value) < 2**62) or (isinstance(value, float) and math.isfinite(value))
