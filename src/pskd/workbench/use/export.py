"""A finished run's model as one file for other programs, tried out after it is written."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pskd.errors import PskdError, installed_by
from pskd.workbench.runs.files import one_line_errors, write_atomic
from pskd.workbench.tasks.predictor import Deployed

OPSET = 20
ABOUT = "pskd.json"  # the name of what a user of a .pt2 file has to know, inside of it


class Written(NamedTuple):
    """A file that was tried out: the largest difference of each output from the run's own, and on what."""

    path: Path
    form: str
    differences: dict[str, float]
    source: str

    def text(self) -> str:
        found = ", ".join(f"{name} differ by at most {value:.1g}" for name, value in self.differences.items())
        return f"{self.path}: {self.form}; {found} on {self.source}"


def export_file(deployed: Deployed, form: str, out: Path) -> Written:
    """Write the model as "onnx" or "pt2", read it back, and compare its answers."""
    write, opened, name = FORMATS[form]
    if out.exists() or out.is_symlink():
        raise PskdError(f"--out {out} is there already: remove it, or choose another name")
    with one_line_errors("export", elsewhere="choose another --out"), tempfile.TemporaryDirectory() as folder:
        out.parent.mkdir(parents=True, exist_ok=True)
        made = Path(folder) / f"model.{form}"
        with _quiet(), torch.no_grad():
            write(deployed, made)
            answers = opened(made, list(deployed.outputs))
            found = [deployed.differences(answers(image), expected) for image, expected in deployed.tries]
        differences = dict(zip(deployed.outputs, np.max(found, axis=0).tolist(), strict=True))  # of NaN: NaN
        for output, near in deployed.outputs.items():
            if not differences[output] <= near:
                raise PskdError(
                    f"the exported model gives other {output}, by up to {differences[output]:.2g} on {deployed.source}:"
                    " nothing was written"
                )
        write_atomic(out, made.read_bytes())
    return Written(out, f"{name}, {deployed.takes}", differences, deployed.source)


def _exported(deployed: Deployed) -> torch.export.ExportedProgram:
    if not deployed.counted:
        raise PskdError(
            "torch.export cannot follow a network that decides how much it answers: take --format onnx or hub"
        )
    image, free = deployed.tries[0][0], deployed.axes["image"]
    example = image[:2] if len(image) > 1 else torch.cat((image, image))  # an axis of length 1 counts as fixed
    try:
        module = deployed.module.cpu().eval()
        shapes = {axis: torch.export.Dim(name) for axis, name in free.items()}
        return torch.export.export(module, (example,), dynamic_shapes=(shapes,))
    except Exception as error:  # whatever a network does that cannot be traced
        raise PskdError(f"torch.export cannot follow this network ({type(error).__name__}: {_first(error)})") from error


def _write_onnx(deployed: Deployed, path: Path) -> None:
    if missing := [name for name in ("onnx", "onnxruntime", "onnxscript") if find_spec(name) is None]:
        raise PskdError(f"--format onnx needs {', '.join(missing)}: {installed_by('onnx')}")
    import onnx

    names: dict[str, Any] = {
        "input_names": ["image"],
        "output_names": list(deployed.outputs),
        "opset_version": OPSET,
        "verbose": False,
    }
    program = _exported(deployed) if deployed.counted else None
    try:
        if program is not None:
            named = (deployed.axes["image"],)
            torch.onnx.export(program, f=path, dynamo=True, external_data=False, dynamic_shapes=named, **names)
        else:  # the older exporter follows one example, and keeps the operations whose results have any length
            module, image = deployed.module.cpu().eval(), deployed.tries[0][0]
            torch.onnx.export(module, (image,), path, dynamo=False, dynamic_axes=deployed.axes, **names)
        made = onnx.load(path)
        onnx.helper.set_model_props(
            made, {n: v if isinstance(v, str) else json.dumps(v) for n, v in deployed.about.items()}
        )
        onnx.save(made, path)
    except Exception as error:
        raise PskdError(f"this network cannot be written as ONNX ({type(error).__name__}: {_first(error)})") from error


def _opened_onnx(path: Path, outputs: list[str]) -> Answers:
    import onnxruntime

    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    return lambda image: [
        torch.from_numpy(each) for each in session.run(outputs, {"image": image.contiguous().numpy()})
    ]


def _write_pt2(deployed: Deployed, path: Path) -> None:
    torch.export.save(_exported(deployed), path, extra_files={ABOUT: json.dumps(deployed.about)})


def _opened_pt2(path: Path, outputs: list[str]) -> Answers:
    module = torch.export.load(path).module()
    return lambda image: [module(image)] if len(outputs) == 1 else list(module(image))


Answers = Callable[[Tensor], Sequence[Tensor]]
FORMATS: dict[str, tuple[Callable[[Deployed, Path], None], Callable[[Path, list[str]], Answers], str]] = {
    "onnx": (_write_onnx, _opened_onnx, f"ONNX, opset {OPSET}"),
    "pt2": (_write_pt2, _opened_pt2, "torch.export"),
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
