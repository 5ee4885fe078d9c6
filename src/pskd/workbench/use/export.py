"""A finished run's model for other programs: one file, tried out after it is written, or a folder to publish."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pskd.errors import PskdError, installed_by
from pskd.workbench.runs.files import one_line_errors, to_disk, write_atomic
from pskd.workbench.tasks.predictor import Exportable

OPSET = 20
ABOUT = "pskd.json"  # the file inside a .pt2 file for what its user has to know


@contextlib.contextmanager
def _new(out: Path) -> Iterator[None]:
    """Refuse a name that exists, and make the folder that ``out`` is written to."""
    if out.exists() or out.is_symlink():
        raise PskdError(f"--out {out} exists already: remove it, or choose another name")
    with one_line_errors("export", elsewhere="choose another --out"):
        out.parent.mkdir(parents=True, exist_ok=True)
        yield


@contextlib.contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A folder to fill, which gets its name when it is complete. If that fails, nothing of it stays."""
    beside = out.with_name(f".{out.name}.writing")
    with _new(out):
        if beside.is_symlink() or beside.is_file():
            beside.unlink()
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir()
        try:
            yield beside
            for path in beside.rglob("*"):
                to_disk(path)
            beside.rename(out)
            to_disk(out.parent)
        finally:
            shutil.rmtree(beside, ignore_errors=True)


def export_file(model: Exportable, form: str, out: Path) -> str:
    """Write the model as "onnx" or "pt2", read it back, and compare its answers. Returns a line about it."""
    write, read, name = FORMATS[form]
    with _new(out), tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"model.{form}"
        with _quiet(), torch.no_grad():
            write(model, file)
            answer = read(file, list(model.outputs))
            compared = [model.differences(answer(image), expected) for image, expected in model.tries]
        largest = dict(zip(model.outputs, np.max(compared, axis=0).tolist(), strict=True))  # NaN if one is
        for output, limit in model.outputs.items():
            if not largest[output] <= limit:
                raise PskdError(
                    f"the exported model gives other {output}, by up to {largest[output]:.2g} on {model.source}:"
                    " nothing was written"
                )
        write_atomic(out, file.read_bytes())
    text = ", ".join(f"{output} differ by at most {value:.1g}" for output, value in largest.items())
    return f"{out}: {name}, {model.takes}; {text} on {model.source}"


def _trace(model: Exportable) -> torch.export.ExportedProgram:
    if not model.fixed_outputs:
        raise PskdError("torch.export cannot follow a network with any number of answers: take --format onnx or hub")
    image, free = model.tries[0][0], model.axes["image"]
    example = image[:2] if len(image) > 1 else torch.cat((image, image))  # an axis of length 1 counts as fixed
    try:
        module = model.module.cpu().eval()
        shapes = {axis: torch.export.Dim(name) for axis, name in free.items()}
        return torch.export.export(module, (example,), dynamic_shapes=(shapes,))
    except Exception as error:  # a network may do anything that cannot be traced
        raise PskdError(
            f"torch.export cannot follow this network ({type(error).__name__}: {_first_line(error)})"
        ) from error


def _write_onnx(model: Exportable, path: Path) -> None:
    if missing := [name for name in ("onnx", "onnxruntime", "onnxscript") if find_spec(name) is None]:
        raise PskdError(f"--format onnx needs {', '.join(missing)}: {installed_by('onnx')}")
    import onnx

    names: dict[str, Any] = {
        "input_names": ["image"],
        "output_names": list(model.outputs),
        "opset_version": OPSET,
        "verbose": False,
    }
    program = _trace(model) if model.fixed_outputs else None
    try:
        if program is not None:
            axes = (model.axes["image"],)
            torch.onnx.export(program, f=path, dynamo=True, external_data=False, dynamic_shapes=axes, **names)
        else:  # the older exporter follows one example, and keeps operations whose results have any length
            module, image = model.module.cpu().eval(), model.tries[0][0]
            torch.onnx.export(module, (image,), path, dynamo=False, dynamic_axes=model.axes, **names)
        file = onnx.load(path)
        texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in model.about.items()}
        onnx.helper.set_model_props(file, texts)
        onnx.save(file, path)
    except Exception as error:
        raise PskdError(
            f"this network cannot be written as ONNX ({type(error).__name__}: {_first_line(error)})"
        ) from error


def _read_onnx(path: Path, outputs: list[str]) -> Answers:
    import onnxruntime

    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    return lambda image: [
        torch.from_numpy(each) for each in session.run(outputs, {"image": image.contiguous().numpy()})
    ]


def _write_pt2(model: Exportable, path: Path) -> None:
    torch.export.save(_trace(model), path, extra_files={ABOUT: json.dumps(model.about)})


def _read_pt2(path: Path, outputs: list[str]) -> Answers:
    module = torch.export.load(path).module()
    return lambda image: [module(image)] if len(outputs) == 1 else list(module(image))


Answers = Callable[[Tensor], Sequence[Tensor]]
FORMATS: dict[str, tuple[Callable[[Exportable, Path], None], Callable[[Path, list[str]], Answers], str]] = {
    "onnx": (_write_onnx, _read_onnx, f"ONNX, opset {OPSET}"),
    "pt2": (_write_pt2, _read_pt2, "torch.export"),
}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide what exporters print about their own steps."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else "no message"
