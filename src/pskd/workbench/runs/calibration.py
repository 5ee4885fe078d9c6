"""calibration.json: what was found out about a model's confidence, beside the weights that it holds for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pskd.errors import PskdError
from pskd.workbench.runs.files import checksum, one_line_errors, write_atomic

_AGAIN = "make it again with pskd calibrate, or remove it"
Temperature = Annotated[float, Field(ge=1e-3, le=1e3)]  # beyond what is ever looked at, and far from overflow


class Calibration(BaseModel):
    """What every task's calibration says; a task's own class adds what it found.

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


def write(weights: Path, found: Calibration) -> Path:
    path = path_of(weights)
    with one_line_errors("calibration"):
        write_atomic(path, found.model_dump_json() + "\n")
    return path


def read(weights: Path, kind: type[Kind]) -> Kind | None:
    """The calibration of a weights' file; None if there is none. One of other weights is refused."""
    path = path_of(weights)
    if not path.is_file():
        return None
    try:
        found = kind.model_validate_json(path.read_bytes())
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors()[0]["loc"]) or "it"
        raise PskdError(f"{path} cannot be used ({where}: {error.errors()[0]['msg']}): {_AGAIN}") from None
    except OSError as error:
        raise PskdError(f"{path} cannot be read ({error.strerror})") from None
    if found.weights != checksum(weights):
        raise PskdError(f"{path} was made for other weights: {_AGAIN}")
    return found
