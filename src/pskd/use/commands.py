"""A finished run put to work from the command line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pskd.errors import PskdError
from pskd.runs.folder import RunFolder
from pskd.runs.group import Group
from pskd.tasks.predictor import Answer, Predictor


def evaluate(
    run: Path, split: str, data_root: str | None = None, *, best: bool = False, allow_code: bool = False
) -> dict[str, Any]:
    """Metrics of a finished run's model on its test or validation split, or on that of data elsewhere."""
    config = RunFolder(run).config(allow_code=allow_code)
    if data_root is not None:
        config = config.model_copy(update={"data": config.data.model_copy(update={"root": data_root})})
    if split not in ("test", "val"):
        raise PskdError(f"split {split!r} is not there; allowed are test, val")
    predictor = Predictor.from_run(run, best=best, allow_code=allow_code)
    found = predictor.evaluate(config, split, Group())
    return {**found, "ece_bins": config.eval.ece_bins, "num_classes": RunFolder(run).result().get("num_classes")}


def predict(
    run: Path, inputs: Sequence[str], *, best: bool = False, allow_code: bool = False, **options: Any
) -> Iterator[Answer | PskdError]:
    """What a finished run makes of each input; one that cannot be read yields its error instead.

    ``options`` are those of its task; one that is None was not given, and one of another task is refused.
    """
    predictor = Predictor.from_run(run, best=best, allow_code=allow_code)
    given = {name: value for name, value in options.items() if value is not None}
    if foreign := sorted(given.keys() - predictor.options):
        own = ", ".join(f"--{name.replace('_', '-')}" for name in sorted(predictor.options)) or "none"
        flag = {"texts": "text"}.get(foreign[0], foreign[0]).replace("_", "-")
        raise PskdError(
            f"--{flag} is not for a run of {predictor.about.task}; its options are {own.replace('--texts', '--text')}"
        )
    yield from predictor.predict(inputs, **given)
