"""`pskd predict`."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Exit, Option

from pskd.errors import PskdError, single_line
from pskd.workbench.api import need_workbench
from pskd.workbench.cli.options import AllowCode, Best, Json, RunPath, app, show

if TYPE_CHECKING:
    from pskd.workbench.use import Answer

MANY = 50  # files, from which on a bar is shown if the answers do not go to the terminal


@app.command(
    epilog="Examples:\n\n"
    "  pskd predict runs/mine photo.jpg scans/*.png --json\n\n"
    "  pskd predict runs/mine photos --csv photos.csv\n\n"
    "  pskd predict runs/mine photo.jpg --coverage 0.9\n\n"
    "  pskd predict runs/mine photo.jpg --max-risk 0.05\n\n"
    '  pskd predict runs/translation-numbers-ps_kd-0 --text "siebzehntausendvier"\n\n'
    "  pskd predict runs/mine german.txt > english.txt"
)
def predict(
    run: RunPath,
    inputs: Annotated[
        list[str] | None,
        Argument(
            metavar="FILE|DIR...",
            help="Images and folders of them; or texts, translated line by line (- or nothing: standard input).",
        ),
    ] = None,
    top: Annotated[int | None, Option(min=1, help="Classifiers: how many classes to show.  [default: 5]")] = None,
    coverage: Annotated[float | None, Option(help="Calibrated: how often the shown classes hold the true one.")] = None,
    max_risk: Annotated[
        float | None, Option(help="Calibrated: the most wrong answers, as a share of those given.")
    ] = None,
    min_score: Annotated[
        float | None, Option(min=0, max=1, help="Detectors: the lowest score.  [default: 0.5]")
    ] = None,
    draw: Annotated[Path | None, Option(help="Detectors: the folder for drawn boxes.  [default: RUN/drawn]")] = None,
    text: Annotated[list[str] | None, Option(help="Translators: a sentence; can be repeated.")] = None,
    table: Annotated[Path | None, Option("--csv", help="Write a table to this file instead of printing.")] = None,
    workers: Annotated[int | None, Option(min=0, help="Processes that read images.  [default: up to 4]")] = None,
    best: Best = False,
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Classify images, find the objects on them (as JSON, and drawn into PNG files), or translate text."""
    need_workbench()
    from pskd.workbench.data.opening import list_images
    from pskd.workbench.use import predict as predict_files

    for name, value in (("coverage", coverage), ("max-risk", max_risk)):
        if value is not None and not 0 < value < 1:
            raise PskdError(f"--{name} must lie in (0, 1), got {value:g}")
    options: dict[str, Any] = {
        "top": top,
        "coverage": coverage,
        "max_risk": max_risk,
        "workers": workers,
        "min_score": min_score,
        "draw": draw,
        "texts": text or None,
    }
    if table is not None:
        _check_table(table)
    files = list_images(inputs or [])
    answers: Iterable[Answer | PskdError] = predict_files(run, files, best=best, allow_code=allow_code, **options)
    if len(files) >= MANY and sys.stderr.isatty() and not (table is None and sys.stdout.isatty()):
        answers = _with_bar(answers, len(files))
    broken = 0
    rows: list[dict[str, str]] = []
    for answer in answers:
        if isinstance(answer, PskdError):
            broken += 1
            show(json.dumps({"error": str(answer)}) if as_json else f"pskd: {single_line(answer)}", error=not as_json)
        elif table is not None:
            rows.append(answer.row())
        else:
            show(json.dumps(answer.to_dict()) if as_json else answer.text())
    if table is not None:
        _write_table(table, rows)
        show(f"{table}: {len(rows):,} answers" + (f", {broken:,} could not be read" if broken else ""))
    if broken:
        raise Exit(2)


def _with_bar(answers: Iterable[Answer | PskdError], total: int) -> Iterable[Answer | PskdError]:
    from rich.console import Console
    from rich.progress import track

    return track(answers, "", total, console=Console(stderr=True), transient=True)


def _check_table(path: Path) -> None:
    """Make the folder of the table, or refuse it before thousands of answers are computed."""
    from pskd.workbench.runs.files import one_line_errors

    with one_line_errors("--csv", elsewhere="name another file"):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "Is a directory", str(path))
        if not os.access(path.parent, os.W_OK):
            raise PermissionError(errno.EACCES, "Permission denied", str(path.parent))


def _write_table(path: Path, rows: list[dict[str, str]]) -> None:
    from pskd.workbench.runs.files import csv_text, one_line_errors, write_named

    names = list(rows[0]) if rows else []
    text = csv_text([names, *(row.values() for row in rows)]) if rows else ""
    with one_line_errors("table"):
        write_named(path, text, "a table of answers", f"{names[0] if names else 'image'},")
