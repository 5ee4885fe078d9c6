"""`pskd export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pskd.workbench.api import export as export_run
from pskd.workbench.cli.options import AllowCode, Best, RunPath, app, show


@app.command(
    epilog="Examples:\n\n"
    "  pskd export runs/mine --format onnx --out mine.onnx --calibrated --with-preprocessing\n\n"
    "  pskd export runs/mine --format hub --out mine-hub"
)
def export(
    run: RunPath,
    form: Annotated[str, typer.Option("--format", help="onnx, pt2 (torch.export), or hub: a folder to publish.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE|DIR", help="What to write; it must not be there yet.")],
    calibrated: Annotated[bool, typer.Option("--calibrated", help="Fold the temperature in.")] = False,
    preprocessing: Annotated[
        bool, typer.Option("--with-preprocessing", help="Take uint8 images (N, H, W, C); normalise inside.")
    ] = False,
    best: Best = False,
    allow_code: AllowCode = False,
) -> None:
    """Write a finished run's model for other programs, and try it out."""
    options = {"calibrated": calibrated, "preprocessing": preprocessing, "best": best, "allow_code": allow_code}
    show(export_run(run, form, out, **options))
