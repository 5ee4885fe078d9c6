"""A finished run, opened by one class from what is saved beside its weights: nothing is rebuilt from data."""

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

TRIED = 16  # images on which an export is tried


class About(BaseModel):
    """What was saved beside the weights: a task's own class adds to it."""

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
        """For machines."""

    def row(self) -> dict[str, str]:
        """For a line of a table."""
        return {name: value if isinstance(value, str) else json.dumps(value) for name, value in self.to_dict().items()}


def _largest(found: Sequence[Tensor], expected: Sequence[Tensor]) -> list[float]:
    return [float((one - other).abs().max()) for one, other in zip(found, expected, strict=True)]


class Deployed(NamedTuple):
    """A model as it is handed to others, with what it has to answer.

    Attributes:
        module: of one tensor, ``image``; gives a tensor, or a tuple of one for each of ``outputs``.
        tries: inputs, each with the run's own answer to it.
        source: where the inputs are from.
        about: what a user of the file has to know.
        outputs: by name, how far they may be from the run's own.
        axes: of the input and the outputs, the dimensions whose length is free, with names for them.
        takes: the same in words.
        counted: the shapes of the outputs follow from those of the input; torch.export can follow no other network.
        differences: the largest one for each output, between two answers.
    """

    module: nn.Module
    tries: Sequence[tuple[Tensor, Sequence[Tensor]]]
    source: str
    about: dict[str, Any]
    outputs: Mapping[str, float]
    axes: Mapping[str, Mapping[int, str]]
    takes: str
    counted: bool = True
    differences: Callable[[Sequence[Tensor], Sequence[Tensor]], list[float]] = _largest


def tried_on(
    config: Config | None, split: Callable[[Config, str], Any], noise: tuple[int, int, int]
) -> tuple[list[Tensor], str]:
    """Some images (C, H, W) uint8 and a word on them: test images, opened by ``split``, or noise of that shape."""
    try:
        if config is None:
            raise PskdError("no config.yaml")
        samples = split(config, "test")
        which = torch.linspace(0, len(samples) - 1, min(TRIED, len(samples))).long().tolist()
        return [samples.pixels(index) for index in which], f"{len(which)} test images"
    except PskdError as error:
        pixels = torch.randint(0, 256, (TRIED, *noise), generator=torch.Generator()).to(torch.uint8)
        return list(pixels), f"{TRIED} images of noise, as its data is not here ({error})"


class Predictor(ABC):
    """A model with all that is needed to use it. ``Predictor.from_run`` opens one of whatever task.

    Args:
        run: the folder it comes from.
        about: what was saved beside its weights.
        model: with its weights, on ``device``, in evaluation mode.
    """

    about_class: ClassVar[type[About]] = About
    calibration_class: ClassVar[type[Calibration] | None] = None  # what ``calibrate`` finds; None: nothing
    validation_hint: ClassVar[str] = "name data that has one"  # how a run gets a validation split
    options: ClassVar[frozenset[str]] = frozenset()  # of ``predict``
    export_hint: ClassVar[str] = "take --format hub"  # where a model cannot be exported to a file

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
            task: what it has to be a run of.
            best: the weights of the best epoch by the validation split instead of the last one's.
            device: by default that of the run if it is here, else the CPU.
            allow_code: import code that the folder names; a folder may come from a stranger.
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
        except Exception as error:  # whatever a library makes of options that a stranger wrote
            raise PskdError(
                f"{path}: its model cannot be built ({type(error).__name__}: {single_line(error)})"
            ) from error
        weights.load(model, path)
        folder = RunFolder(run)
        wanted = device or (folder.config().train.device if folder.config_file.is_file() else "auto")
        with error_context(f"{path}: what is said of its model does not fit it"):
            predictor: Predictor = kind(run, about, model, usable_device(wanted))
        if calibrated and kind.calibration_class is not None:
            predictor.calibration = calibration.read(path, kind.calibration_class)
        return predictor

    @classmethod
    @abstractmethod
    def build(cls, about: Any, *, allow_code: bool = False) -> nn.Module:
        """The model that ``about`` describes, for its weights to be read into."""

    @abstractmethod
    def predict(self, inputs: Sequence[str], **options: Any) -> Iterator[Answer | PskdError]:
        """What the model makes of each input of a command; one that cannot be read yields its error instead."""

    def answers(self, inputs: Sequence[Any], **options: Any) -> Iterator[Answer | PskdError]:
        """What the model makes of each input of a program: images, arrays or texts as well as files."""
        return self.predict(inputs, **options)

    def __call__(self, inputs: Any, **options: Any) -> Any:
        """The answer to one input, or those to a list, a tuple or an array of images (N, H, W, C)."""
        several = isinstance(inputs, list | tuple) or getattr(inputs, "ndim", 0) == 4
        found = []
        for answer in self.answers(list(inputs) if several else [inputs], **options):
            if isinstance(answer, PskdError):
                raise answer
            found.append(answer)
        return found if several else found[0]

    def calibrate(
        self,
        config: Config,
        group: Group,
        *,
        split: str = "val",
        fingerprint: str | None = None,
        seen: Mapping[str, str] | None = None,
        **about: Any,
    ) -> Calibration:
        """Find out how sure the model may be.

        Args:
            split: of the configuration's data, "val" or "test"; no sample of it may have been trained on.
            fingerprint: what the split has to have, if that is known.
            seen: the fingerprints that it must not have, each with the name of that split of the run's own.
            **about: further fields of ``calibration_class``.
        """
        raise PskdError(f"a run of {self.about.task} cannot be calibrated: this task has nothing to calibrate")

    def check_unseen(
        self, split: str, found: str, fingerprint: str | None = None, seen: Mapping[str, str] | None = None
    ) -> None:
        """Refuse to calibrate on a split whose fingerprint, ``found``, says that it is another than it ought to be."""
        if fingerprint not in (None, found):
            raise PskdError(
                f"{self.run}: its {split} split has changed since it was trained, and may hold samples that it was"
                " trained on: bring the data back, or name other data with --root"
            )
        if seen and found in seen:
            raise PskdError(
                f"{self.run}: this is its own {seen[found]} set, on which nothing may be calibrated: name other data,"
                " or leave --root out to calibrate on its validation split"
            )

    def check_apart(self, config: Config, own: Config, split: str) -> None:
        """Refuse a split with images of the run's ``own`` training or test set, where that can be told."""
        return

    def deployed(self, config: Config | None, *, calibrated: bool = False, preprocessing: bool = False) -> Deployed:
        """The model for other programs, its temperature and the preprocessing of its input inside if that is asked for.

        It is tried on test samples of the configuration's data, or on noise where there are none.
        """
        raise PskdError(f"a run of {self.about.task} cannot be exported to this format; {self.export_hint}")

    def save_for_hub(self, folder: Path, weights_file: Path) -> None:
        """Write weights and all that is needed to use them into a folder of their own."""
        shutil.copyfile(weights_file, folder / "model.safetensors")
        if self.calibration is not None:
            calibration.write(folder / "model.safetensors", self.calibration)
        (folder / "config.json").write_text(json.dumps(self.hub_config(), indent=2) + "\n", encoding="utf-8")

    def hub_config(self) -> dict[str, Any]:
        """What config.json says of the model."""
        return {"library": "pskd", **self.about.model_dump(mode="json")}

    def loading(self) -> dict[str, str]:
        """Lines of Python that load that folder, which they call FOLDER, by library."""
        return {"pskd": 'import pskd\n\npredict = pskd.load("FOLDER")'}

    def pictures(self, config: Config, which: Sequence[int], fingerprint: str) -> list[np.ndarray] | None:
        """Test samples as images, (H, W, C) uint8; None where the data has another fingerprint, or no pictures."""
        return None

    @abstractmethod
    def evaluate(self, config: Config, split: str, group: Group) -> dict[str, Any]:
        """Metrics on a split of the data that the configuration names, seen as the run's own data was."""
