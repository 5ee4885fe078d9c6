"""`pskd predict`."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pskd.errors import PskdError, single_line
from pskd.workbench.api import need_workbench
from pskd.workbench.cli.options import AllowCode, Best, Json, RunPath, app, show

if TYPE_CHECKING:
    from pskd.workbench.use import Answer

MANY = 50  # answers for which a bar is shown


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
        typer.Argument(
            metavar="FILE|DIR...",
            help="Images of any size and mode, and folders of them; or texts, translated line by line (- or nothing:"
            " what is piped in).",
        ),
    ] = None,
    top: Annotated[int | None, typer.Option(min=1, help="Classifiers: how many classes to show.  [default: 5]")] = None,
    coverage: Annotated[
        float | None,
        typer.Option(help="Calibrated classifiers: a set that holds the true class with this probability."),
    ] = None,
    max_risk: Annotated[
        float | None,
        typer.Option(help="Calibrated runs: answer only where at most this share of the answers is wrong."),
    ] = None,
    min_score: Annotated[
        float | None, typer.Option(min=0, max=1, help="Detectors: the least score to show.  [default: 0.5]")
    ] = None,
    draw: Annotated[
        Path | None, typer.Option(help="Detectors: the folder for drawings of the boxes.  [default: RUN/drawn]")
    ] = None,
    text: Annotated[
        list[str] | None, typer.Option(help="Translators: a sentence to translate; may be given several times.")
    ] = None,
    table: Annotated[Path | None, typer.Option("--csv", help="Write a table there instead of printing.")] = None,
    workers: Annotated[
        int | None, typer.Option(min=0, help="Classifiers: processes that open images.  [default: up to 4 for many]")
    ] = None,
    best: Best = False,
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Classify images, find the objects on them (as JSON, and drawn into PNG files), or translate text."""
    need_workbench()
    from pskd.workbench.data.opening import with_folders
    from pskd.workbench.use import predict as answers

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
    files = with_folders(inputs or [])
    found = answers(run, files, best=best, allow_code=allow_code, **options)
    if len(files) >= MANY and sys.stderr.isatty() and not (table is None and sys.stdout.isatty()):
        found = _with_bar(found, len(files))  # where the answers themselves do not go to the terminal
    broken = 0
    rows: list[dict[str, str]] = []
    for item in found:
        if isinstance(item, PskdError):
            broken += 1
            show(json.dumps({"error": str(item)}) if as_json else f"pskd: {single_line(item)}", error=not as_json)
        elif table is not None:
            rows.append(item.row())
        else:
            show(json.dumps(item.to_dict()) if as_json else item.text())
    if table is not None:
        _write_table(table, rows)
        show(f"{table}: {len(rows):,} answers" + (f", {broken:,} could not be read" if broken else ""))
    if broken:
        raise typer.Exit(2)


def _with_bar(found: Iterable[Answer | PskdError], total: int) -> Iterator[Answer | PskdError]:
    from rich.console import Console
    from rich.progress import track

    yield from track(found, "", total, console=Console(stderr=True), transient=True)


def _check_table(path: Path) -> None:
    """Refuse a place for a table now, not after thousands of answers; its folder is made."""
    from pskd.workbench.runs.files import one_line_errors

    with one_line_errors("--csv", elsewhere="name another file"):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "Is a directory", str(path))
        path.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(path.parent, os.W_OK):
            raise PermissionError(errno.EACCES, "Permission denied", str(path.parent))


def _write_table(path: Path, rows: list[dict[str, str]]) -> None:
    from pskd.workbench.runs.files import one_line_errors, write_named

    out = io.StringIO()
    if rows:
        writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    with one_line_errors("table"):
        write_named(path, out.getvalue(), "a table of answers", f"{next(iter(rows[0] if rows else ['image']))},")
