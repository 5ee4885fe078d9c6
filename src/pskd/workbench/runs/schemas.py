"""What the files of a run may hold: one class for each file, which checks it where it is read.

A folder may come from a stranger, a damaged disk or another version. The error names what does not fit, in one line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pskd.errors import PskdError
from pskd.workbench.reading import read_json

Whole = Annotated[int, Field(ge=0, lt=2**62, strict=True)]
Number = Annotated[float, Field(allow_inf_nan=False, strict=True, ge=-1e300, le=1e300)]
Duration = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]  # seconds
Kind = TypeVar("Kind", bound=BaseModel)


class _OpenFile(BaseModel):
    """A file that may hold more than what is declared: metrics, for example."""

    model_config = ConfigDict(frozen=True, extra="allow")

    @model_validator(mode="before")
    @classmethod
    def _check_values(cls, tree: Any) -> Any:
        for name, value in tree.items() if isinstance(tree, Mapping) else ():
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{name} is {value}")
            if isinstance(value, int) and abs(value) >= 2**62:
                raise ValueError(f"{name} is too large")
            if not _is_json(value):
                raise ValueError(f"{name} is neither a number nor text")
        return tree


class Metrics(_OpenFile):
    """Metrics of a split by name: numbers, or numbers by class."""

    ap_per_class: dict[str, float | None] = {}
    ap_per_class_11point: dict[str, float | None] = {}


class Seconds(_OpenFile):
    training: Duration
    per_epoch: Duration | None


class Best(_OpenFile):
    """The best epoch so far by the validation split."""

    epoch: Whole
    val: Metrics


class Result(Metrics):
    """result.json: metrics on the test split, and how they were obtained."""

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


class Epoch(_OpenFile):
    """A line of metrics.jsonl."""

    epoch: Whole
    train_loss: Number | None = None
    loss_parts: dict[str, Number] = {}
    val: Metrics = Metrics()
    test: Metrics = Metrics()


class SavedProgress(BaseModel):
    """progress.pt: how far a checkpoint's training was."""

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
    """manifest.json: the checksums and sizes of a checkpoint's files. Version 0.1 wrote no sizes."""

    files: dict[str, str]
    sizes: dict[str, Whole] = {}


def validate(kind: type[Kind], tree: Any, path: Path | str, advice: str) -> Kind:
    """The tree as its class, or an error that says what is wrong with it."""
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"]))[:80]
        why = first["msg"].removeprefix("Value error, ")
        why = why[0].lower() + why[1:]
        raise PskdError(f"{path} is damaged ({f'{where}: {why}' if where else why}): {advice}") from None


def read(kind: type[Kind], path: Path, most: int, advice: str) -> tuple[Any, Kind]:
    """What a file of JSON of at most ``most`` bytes holds: as it stands there, and as its class."""
    try:
        tree = read_json(path, most)
    except PskdError as error:
        raise PskdError(f"{path} is damaged ({error}): {advice}") from None
    return tree, validate(kind, tree, path, advice)


def _is_json(value: Any, depth: int = 10) -> bool:
    """Whether JSON could hold it: a checkpoint may hold tensors anywhere."""
    if isinstance(value, dict):
        return depth > 0 and all(isinstance(key, str) and _is_json(item, depth - 1) for key, item in value.items())
    if isinstance(value, list | tuple):
        return depth > 0 and all(_is_json(item, depth - 1) for item in value)
    return value is None or isinstance(value, str | int | float)
