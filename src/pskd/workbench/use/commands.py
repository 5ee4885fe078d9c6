"""A finished run put to work from the command line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pskd.errors import PskdError
from pskd.workbench.config import Config
from pskd.workbench.runs import calibration, predictions, weights
from pskd.workbench.runs.calibration import Calibration
from pskd.workbench.runs.files import checksum
from pskd.workbench.runs.folder import RunFolder
from pskd.workbench.runs.group import Group
from pskd.workbench.tasks.predictor import Answer, Predictor


def evaluate(
    run: Path, split: str, data_root: str | None = None, *, best: bool = False, allow_code: bool = False
) -> dict[str, Any]:
    """Metrics of a finished run's model on its test or validation split, or on that of data elsewhere."""
    config = _config(run, data_root, allow_code)
    if split not in ("test", "val"):
        raise PskdError(f"split {split!r} is not there; allowed are test, val")
    predictor = Predictor.from_run(run, best=best, allow_code=allow_code)
    found = predictor.evaluate(config, split, Group())
    return {**found, "ece_bins": config.eval.ece_bins, "num_classes": RunFolder(run).result().get("num_classes")}


def calibrate(
    run: Path,
    data_root: str | None = None,
    *,
    split: str = "val",
    best: bool = False,
    allow_code: bool = False,
    **options: Any,
) -> Calibration:
    """Find out how sure a finished run's model may be, and store it beside its weights.

    Args:
        data_root: data that the run was not trained on, instead of its own validation split.
        split: of that data.
        **options: fields of the task's ``calibration_class``, such as ``by_class`` and ``delta``.
    """
    if split not in ("val", "test"):
        raise PskdError(f"split {split!r} is not there; allowed are val and, for data named by --root, test")
    if split == "test" and data_root is None:
        raise PskdError("the run's own test set is for measuring only: calibrate on val, or name data with --root")
    predictor = Predictor.from_run(run, best=best, allow_code=allow_code, calibrated=False)
    kind = predictor.calibration_class
    if kind is not None and (foreign := sorted(options.keys() - kind.model_fields.keys())):
        raise PskdError(f"--{foreign[0].replace('_', '-')} is not for a run of {predictor.about.task}")
    known, seen = (predictions.fingerprint(run, split), None) if data_root is None else (None, _seen(run))
    path = weights.path_of(run, best=best)
    about = {"weights": checksum(path), "fitted_on": data_root or split}
    config = _config(run, data_root, allow_code)
    if data_root is not None:
        predictor.check_apart(config, _config(run, None, allow_code), split)
    found = predictor.calibrate(config, Group(), split=split, fingerprint=known, seen=seen, **about, **options)
    calibration.write(path, found)
    return found


def _seen(run: Path) -> dict[str, str]:
    """What a run was trained and measured on, by fingerprint."""
    found = {RunFolder(run).result().get("data_fingerprint"): "training", predictions.fingerprint(run, "test"): "test"}
    return {fingerprint: name for fingerprint, name in found.items() if fingerprint is not None}


def _config(run: Path, data_root: str | None, allow_code: bool) -> Config:
    """The run's configuration, with the data elsewhere if that is said."""
    config = RunFolder(run).config(allow_code=allow_code)
    if data_root is None:
        return config
    return config.model_copy(update={"data": config.data.model_copy(update={"root": data_root})})


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
