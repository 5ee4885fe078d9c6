"""A finished run's model as one file for other programs, tried out after it is written."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pskd.errors import PskdError, installed_by
from pskd.runs.files import one_line_errors, write_atomic
from pskd.tasks.predictor import Deployed

OPSET = 20
NEAR = 1e-5  # how far the probabilities of an exported file may be from the run's own
ABOUT = "pskd.json"  # the name of what a user of a .pt2 file has to know, inside of it


class Written(NamedTuple):
    """A file that was tried out: the largest difference of its probabilities from the run's own, and on what."""

    path: Path
    form: str
    difference: float
    source: str

    def text(self) -> str:
        return f"{self.path}: {self.form}; probabilities differ by at most {self.difference:.1g} on {self.source}"


def export_file(deployed: Deployed, form: str, out: Path) -> Written:
    """Write the model as "onnx" or "pt2", read it back, and compare its answers."""
    write, answers, name = FORMATS[form]
    if out.exists() or out.is_symlink():
        raise PskdError(f"--out {out} is there already: remove it, or choose another name")
    with one_line_errors("export", elsewhere="choose another --out"), tempfile.TemporaryDirectory() as folder:
        out.parent.mkdir(parents=True, exist_ok=True)
        made = Path(folder) / f"model.{form}"
        with _quiet(), torch.no_grad():
            write(_exported(deployed), deployed.about, made)
            found = answers(made, deployed.inputs)
        difference = float((found - deployed.expected).abs().max())
        if not difference <= NEAR:
            raise PskdError(
                f"the exported model gives other probabilities, by up to {difference:.2g} on {deployed.source}:"
                " nothing was written"
            )
        write_atomic(out, made.read_bytes())
    return Written(out, name, difference, deployed.source)


def _exported(deployed: Deployed) -> torch.export.ExportedProgram:
    example = deployed.inputs[:2] if len(deployed.inputs) > 1 else deployed.inputs.repeat(2, 1, 1, 1)
    try:
        module = deployed.module.cpu().eval()
        return torch.export.export(module, (example,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    except Exception as error:  # whatever a network does that cannot be traced
        raise PskdError(f"torch.export cannot follow this network ({type(error).__name__}: {_first(error)})") from error


def _write_onnx(program: torch.export.ExportedProgram, about: dict[str, Any], path: Path) -> None:
    if missing := [name for name in ("onnx", "onnxruntime", "onnxscript") if find_spec(name) is None]:
        raise PskdError(f"--format onnx needs {', '.join(missing)}: {installed_by('onnx')}")
    names = {"input_names": ["image"], "output_names": ["probabilities"]}
    try:
        made = torch.onnx.export(program, dynamo=True, opset_version=OPSET, verbose=False, **names)  # type: ignore[arg-type]
        assert made is not None
        for name, value in about.items():
            made.model.metadata_props[name] = value if isinstance(value, str) else json.dumps(value)
        made.save(path)
    except Exception as error:
        raise PskdError(f"this network cannot be written as ONNX ({type(error).__name__}: {_first(error)})") from error


def _onnx_answers(path: Path, inputs: Tensor) -> Tensor:
    import onnxruntime

    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(["probabilities"], {"image": inputs.contiguous().numpy()})[0])


def _write_pt2(program: torch.export.ExportedProgram, about: dict[str, Any], path: Path) -> None:
    torch.export.save(program, path, extra_files={ABOUT: json.dumps(about)})


def _pt2_answers(path: Path, inputs: Tensor) -> Tensor:
    found: Tensor = torch.export.load(path).module()(inputs)
    return found


Write = Callable[[torch.export.ExportedProgram, dict[str, Any], Path], None]
FORMATS: dict[str, tuple[Write, Callable[[Path, Tensor], Tensor], str]] = {
    "onnx": (_write_onnx, _onnx_answers, f"ONNX, opset {OPSET}, any batch size"),
    "pt2": (_write_pt2, _pt2_answers, "torch.export, any batch size"),
}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Exporters tell the terminal a great deal about their own steps."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _first(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else "without a word"
