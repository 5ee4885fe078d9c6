"""calibration.json: how far a model's confidence can be trusted, beside the weights that this holds for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from pskd.errors import PskdError
from pskd.workbench.runs import schemas
from pskd.workbench.runs.files import checksum, one_line_errors, write_atomic

_ADVICE = "make it again with pskd calibrate, or remove it"
Temperature = Annotated[float, Field(ge=1e-3, le=1e3)]  # the search stays far inside, and nothing overflows


class Calibration(BaseModel):
    """What is the same for every task; a task's own class adds its results.

    Args:
        weights: the SHA-256 sum of the weights' file: for others it does not hold.
        fitted_on: "val", or the folder or file of the data that was named.
        samples: how many there were.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    version: Literal[1] = 1
    task: str
    weights: str
    fitted_on: str
    samples: Annotated[int, Field(ge=1)]

    def lines(self) -> list[str]:
        """For people."""
        return [f"fitted on {self.samples:,} samples ({self.fitted_on})"]

    def to_dict(self) -> dict[str, Any]:
        """For machines: what ``lines`` says, without the columns that only a program reads."""
        return self.model_dump(mode="json")


Kind = TypeVar("Kind", bound=Calibration)


def path_of(weights: Path) -> Path:
    """Where the calibration of a weights' file is: calibration.json, or best.calibration.json for the best epoch's."""
    return weights.with_name("calibration.json" if weights.stem == "model" else f"{weights.stem}.calibration.json")


def write(weights: Path, calibration: Calibration) -> Path:
    path = path_of(weights)
    with one_line_errors("calibration"):
        write_atomic(path, calibration.model_dump_json() + "\n")
    return path


def read(weights: Path, kind: type[Kind]) -> Kind | None:
    """The calibration of a weights' file, None if there is none. A calibration of other weights is refused."""
    path = path_of(weights)
    if not path.is_file():
        return None
    calibration = schemas.read(kind, path, 2**28, _ADVICE)[1]
    if calibration.weights != checksum(weights):
        raise PskdError(f"{path} was made for other weights: {_ADVICE}")
    return calibration
