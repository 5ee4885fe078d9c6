"""A finished run, opened from what is saved beside its weights. Nothing is rebuilt from the training data."""

from __future__ import annotations

import json
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor, nn

from pskd.errors import PskdError, error_context, single_line
from pskd.workbench import registry
from pskd.workbench.config import Config
from pskd.workbench.models.modest import build_within_memory
from pskd.workbench.runs import calibration, weights
from pskd.workbench.runs.calibration import Calibration
from pskd.workbench.runs.devices import usable_device
from pskd.workbench.runs.folder import RunFolder
from pskd.workbench.runs.group import Group

TRIAL_IMAGES = 16  # that an exported model is tried on


class Evaluation(NamedTuple):
    """Metrics by name in the paper's units, and the predictions that they were computed from (for predictions.npz).

    A metric is a number, or one number for each class.
    """

    metrics: dict[str, Any]
    predictions: dict[str, np.ndarray]
    signatures: dict[str, str] = {}  # noqa: RUF012  # how a metric was computed, if that has a name
    examples: Sequence[str] = ()  # a few predictions in words, for the end of a run
    details: Callable[[], dict[str, Any]] = dict  # what `pskd evaluate` shows and a training does not


class About(BaseModel):
    """What was saved beside the weights. A task's own class adds to it."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    task: str
    model: dict[str, Any]
    version: str | None = None  # of pskd that saved it; None: 0.1


class Answer(ABC):
    """A model's answer to one input."""

    @abstractmethod
    def text(self) -> str:
        """For people."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """For programs."""

    def row(self) -> dict[str, str]:
        """For a line of a table."""
        return {name: value if isinstance(value, str) else json.dumps(value) for name, value in self.to_dict().items()}


def largest_differences(outputs: Sequence[Tensor], expected: Sequence[Tensor]) -> list[float]:
    return [float((one - other).abs().max()) for one, other in zip(outputs, expected, strict=True)]


class Exportable(NamedTuple):
    """A model for other programs, and the answers that it has to give.

    Attributes:
        module: takes one tensor, ``image``; returns a tensor, or a tuple with one tensor for each of ``outputs``.
        tries: inputs, each with the run's own answer.
        source: where these inputs are from.
        about: what a user of the file has to know.
        outputs: the names of the outputs, and how far each may be from the run's own.
        axes: by name of input or output, the dimensions of any length, with names for them.
        takes: the same in words.
        fixed_outputs: the shapes of the outputs follow from the shape of the input. torch.export needs that.
        differences: the largest one for each output, between two answers.
    """

    module: nn.Module
    tries: Sequence[tuple[Tensor, Sequence[Tensor]]]
    source: str
    about: dict[str, Any]
    outputs: Mapping[str, float]
    axes: Mapping[str, Mapping[int, str]]
    takes: str
    fixed_outputs: bool = True
    differences: Callable[[Sequence[Tensor], Sequence[Tensor]], list[float]] = largest_differences


def splits_of(data: Any, names: Sequence[str] = ("test", "val")) -> dict[str, Any]:
    """The splits of a data set that a model can be evaluated on, by name. There may be no "val"."""
    return {name: samples for name in names if (samples := getattr(data, name)) is not None}


class Predictor(ABC):
    """A model with all that is needed to use it. ``Predictor.from_run`` opens a run of any task.

    Args:
        run: the folder it comes from.
        about: what was saved beside its weights.
        model: with its weights. It is moved to ``device`` and put into evaluation mode.
    """

    about_class: ClassVar[type[About]] = About
    calibration_class: ClassVar[type[Calibration] | None] = None  # the result of ``calibrate``; None: it has none
    validation_hint: ClassVar[str] = "name data that has one"  # how a run gets a validation split
    options: ClassVar[frozenset[str]] = frozenset()  # of ``predict``
    export_hint: ClassVar[str] = "take --format hub"  # for a model that cannot be exported to a file

    def __init__(self, run: Path, about: Any, model: nn.Module, device: torch.device) -> None:
        self.run, self.about, self.device = run, about, device
        self.model = model.to(device).eval()
        self.calibration: Any = None  # of ``calibration_class``, once the run is calibrated

    @staticmethod
    def from_run(
        run: Path,
        *,
        task: str | None = None,
        best: bool = False,
        device: str | None = None,
        allow_code: bool = False,
        calibrated: bool = True,
    ) -> Predictor:
        """Open a finished run.

        Args:
            run: its folder.
            task: the task that the run must have.
            best: take the weights of the best epoch by the validation split instead of the last one's.
            device: by default the run's own if it is here, else the CPU.
            allow_code: import code that the folder names. A folder may come from a stranger.
            calibrated: read its calibration, if it has one.
        """
        path = weights.path_of(run, best=best)
        raw = weights.metadata(path)
        if task is not None and raw.get("task") != task:
            raise PskdError(f"{run} is a run of {raw.get('task')}, not of {task}")
        kind = registry.tasks.load(str(raw.get("task")), allow_code=allow_code).Predictor
        try:
            about = kind.about_class.model_validate(raw)
            model = build_within_memory(lambda: kind.build(about, allow_code=allow_code), copies=1)
        except ValidationError as error:
            where = ".".join(str(part) for part in error.errors()[0]["loc"])
            raise PskdError(f"{path} does not say what model it holds ({where}: {error.errors()[0]['msg']})") from None
        except PskdError as error:
            raise PskdError(f"{path}: {error}") from error
        except Exception as error:  # a library may raise anything for options that a stranger wrote
            raise PskdError(
                f"{path}: its model cannot be built ({type(error).__name__}: {single_line(error)})"
            ) from error
        weights.load(model, path)
        folder = RunFolder(run)
        wanted = device or (folder.config().train.device if folder.config_file.is_file() else "auto")
        with error_context(f"{path}: the description of its model does not fit it"):
            predictor: Predictor = kind(run, about, model, usable_device(wanted))
        if calibrated and kind.calibration_class is not None:
            predictor.calibration = calibration.read(path, kind.calibration_class)
        return predictor

    @classmethod
    @abstractmethod
    def build(cls, about: Any, *, allow_code: bool = False) -> nn.Module:
        """The model that ``about`` describes. Its weights are loaded into it afterwards."""

    @abstractmethod
    def splits(self, config: Config, *names: str) -> Mapping[str, Any]:
        """The named splits of a configuration's data, prepared as in training: "test", and "val" if there is one."""

    @abstractmethod
    def evaluate(self, samples: Any, config: Config, group: Group) -> Evaluation:
        """Metrics on one of the ``splits``, exact over all processes. A training calls it as well."""

    @abstractmethod
    def predict(self, inputs: Sequence[str], **options: Any) -> Iterator[Answer | PskdError]:
        """The model's answer to each input of a command. For an input that cannot be read: the error."""

    def answers(self, inputs: Sequence[Any], **options: Any) -> Iterator[Answer | PskdError]:
        """The model's answer to each input of a program: images, arrays or texts as well as files."""
        return self.predict(inputs, **options)

    def __call__(self, inputs: Any, **options: Any) -> Any:
        """The answer to one input, or the answers to a list, a tuple or an array of images (N, H, W, C)."""
        several = isinstance(inputs, list | tuple) or getattr(inputs, "ndim", 0) == 4
        answers = []
        for answer in self.answers(list(inputs) if several else [inputs], **options):
            if isinstance(answer, PskdError):
                raise answer
            answers.append(answer)
        return answers if several else answers[0]

    def calibrate(
        self, splits: Mapping[str, Any], split: str, config: Config, group: Group, **about: Any
    ) -> Calibration:
        """Measure how sure the model may be. A predictor with a ``calibration_class`` has this method.

        Args:
            splits: "test", and the one to calibrate on.
            split: the name of that one. The model was not trained on any of its samples.
            **about: further fields of ``calibration_class``.
        """
        raise PskdError(f"a run of {self.about.task} cannot be calibrated: this task has nothing to calibrate")

    def check_apart(self, samples: Any, own: Config) -> None:
        """Refuse samples that are in the run's ``own`` training or test set, if that can be found out."""
        return

    def need_calibration(self) -> None:
        """Refuse to go on with a run that is not calibrated."""
        if self.calibration is None:
            raise PskdError(f"{self.run} is not calibrated: pskd calibrate {self.run} does it")

    def to_export(self, config: Config | None, *, calibrated: bool = False, preprocessing: bool = False) -> Exportable:
        """The model for other programs. Its temperature and its preprocessing are part of it if asked for.

        It is tried on test samples of the configuration's data, or on noise if the data is not here.
        """
        raise PskdError(f"a run of {self.about.task} cannot be exported to this format; {self.export_hint}")

    def save_for_hub(self, folder: Path, weights_file: Path) -> None:
        """Write the weights and all that is needed to use them into a folder."""
        shutil.copyfile(weights_file, folder / "model.safetensors")
        if self.calibration is not None:
            calibration.write(folder / "model.safetensors", self.calibration)
        (folder / "config.json").write_text(json.dumps(self.hub_config(), indent=2) + "\n", encoding="utf-8")

    def hub_config(self) -> dict[str, Any]:
        """The content of config.json."""
        return {"library": "pskd", **self.about.model_dump(mode="json")}

    def loading(self) -> dict[str, str]:
        """By library, lines of Python that load this folder, which they call FOLDER."""
        return {"pskd": 'import pskd\n\npredict = pskd.load("FOLDER")'}

    def pictures(self, config: Config, which: Sequence[int], fingerprint: str) -> list[np.ndarray] | None:
        """Test samples as images, (H, W, C) uint8. None: the data has another fingerprint, or no pictures."""
        return None


class ImagePredictor(Predictor):
    """A model that sees images. Its ``splits`` have ``pixels(index)`` and a ``fingerprint``."""

    def predict(self, inputs: Sequence[str], **options: Any) -> Iterator[Answer | PskdError]:
        """The answer to each image file: see ``answers``."""
        if not inputs:
            raise PskdError("which images? for example: pskd predict RUN photo.jpg")
        return self.answers(inputs, **options)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""
        classes: tuple[str, ...] = self.about.classes
        return classes

    def pictures(self, config: Config, which: Sequence[int], fingerprint: str) -> list[np.ndarray] | None:
        samples = self.splits(config, "test")["test"]
        if samples.fingerprint != fingerprint:
            return None
        return [samples.pixels(index).permute(1, 2, 0).numpy() for index in which]

    def trial_images(self, config: Config | None, noise: tuple[int, int, int]) -> tuple[list[Tensor], str]:
        """Images (C, H, W) uint8 to try an export on, and where they are from: the test set, or ``noise`` (C, H, W)."""
        try:
            if config is None:
                raise PskdError("no config.yaml")
            samples = self.splits(config, "test")["test"]
            which = torch.linspace(0, len(samples) - 1, min(TRIAL_IMAGES, len(samples))).long().tolist()
            return [samples.pixels(index) for index in which], f"{len(which)} test images"
        except PskdError as error:
            pixels = torch.randint(0, 256, (TRIAL_IMAGES, *noise), generator=torch.Generator()).to(torch.uint8)
            return list(pixels), f"{TRIAL_IMAGES} images of noise, as its data is not here ({error})"
