"""A finished run put to work from the command line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
    """Metrics of a finished run's model on its test or validation split, or on that of other data."""
    config = _config(run, data_root, allow_code)
    if split not in ("test", "val"):
        raise PskdError(f"split {split!r} is unknown; allowed are test, val")
    predictor = Predictor.from_run(run, best=best, allow_code=allow_code)
    evaluation = predictor.evaluate(_splits(predictor, config, split)[split], config, Group())
    signatures = {"signatures": evaluation.signatures} if evaluation.signatures else {}
    about = {"ece_bins": config.eval.ece_bins, "num_classes": RunFolder(run).result().get("num_classes")}
    return {**evaluation.metrics, **signatures, **evaluation.details(), **about}


def calibrate(
    run: Path,
    data_root: str | None = None,
    *,
    split: str = "val",
    best: bool = False,
    allow_code: bool = False,
    **options: Any,
) -> Calibration:
    """Measure how sure a finished run's model may be, and store the result beside its weights.

    Args:
        data_root: data that the run was not trained on, instead of its own validation split.
        split: of that data.
        **options: fields of the task's ``calibration_class``, such as ``by_class`` and ``delta``.
    """
    if split not in ("val", "test"):
        raise PskdError(f"split {split!r} is unknown; allowed are val and, for data named by --root, test")
    if split == "test" and data_root is None:
        raise PskdError("the run's own test set is for measuring only: calibrate on val, or name data with --root")
    predictor = Predictor.from_run(run, best=best, allow_code=allow_code, calibrated=False)
    kind, task = predictor.calibration_class, predictor.about.task
    if kind is None:
        raise PskdError(f"a run of {task} cannot be calibrated: this task has nothing to calibrate")
    if foreign := sorted(options.keys() - kind.model_fields.keys()):
        raise PskdError(f"--{foreign[0].replace('_', '-')} is not for a run of {task}")
    config = _config(run, data_root, allow_code)
    splits = _splits(predictor, config, split, "test")
    if data_root is None:
        _check_unchanged(run, split, splits[split].fingerprint)
    else:
        _check_unseen(run, splits[split].fingerprint)
        predictor.check_apart(splits[split], _config(run, None, allow_code))
    path = weights.path_of(run, best=best)
    about = {"weights": checksum(path), "fitted_on": data_root or split}
    result = predictor.calibrate(splits, split, config, Group(), **about, **options)
    calibration.write(path, result)
    return result


def _splits(predictor: Predictor, config: Config, *names: str) -> Mapping[str, Any]:
    splits = predictor.splits(config, *names)
    if any(name not in splits for name in names):
        raise PskdError(f"{predictor.run} has no validation split; {predictor.validation_hint}")
    return splits


def _check_unchanged(run: Path, split: str, fingerprint: str) -> None:
    if predictions.fingerprint(run, split) not in (None, fingerprint):
        raise PskdError(
            f"{run}: its {split} split has changed since it was trained, and may hold samples that it was"
            " trained on: restore the data, or name other data with --root"
        )


def _check_unseen(run: Path, fingerprint: str) -> None:
    """Refuse data that the run was trained or measured on."""
    own = {RunFolder(run).result().get("data_fingerprint"): "training", predictions.fingerprint(run, "test"): "test"}
    if fingerprint in own:
        raise PskdError(
            f"{run}: this is its own {own[fingerprint]} set, on which nothing may be calibrated: name other data,"
            " or leave --root out to calibrate on its validation split"
        )


def _config(run: Path, data_root: str | None, allow_code: bool) -> Config:
    """The run's configuration, with other data if they are given."""
    config = RunFolder(run).config(allow_code=allow_code)
    if data_root is None:
        return config
    return config.model_copy(update={"data": config.data.model_copy(update={"root": data_root})})


def predict(
    run: Path, inputs: Sequence[str], *, best: bool = False, allow_code: bool = False, **options: Any
) -> Iterator[Answer | PskdError]:
    """A finished run's answer to each input. For an input that cannot be read: the error.

    ``options`` are those of the run's task; those of another task are refused. None means that one is not given.
    """
    predictor = Predictor.from_run(run, best=best, allow_code=allow_code)
    given = {name: value for name, value in options.items() if value is not None}
    if foreign := sorted(given.keys() - predictor.options):
        own = ", ".join(map(_flag, sorted(predictor.options))) or "none"
        raise PskdError(f"{_flag(foreign[0])} is not for a run of {predictor.about.task}; its options are {own}")
    yield from predictor.predict(inputs, **given)


def _flag(option: str) -> str:
    return "--text" if option == "texts" else f"--{option.replace('_', '-')}"
