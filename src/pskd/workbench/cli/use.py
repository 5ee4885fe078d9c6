"""Commands for finished runs: `pskd evaluate`, `calibrate`, `ensemble`, `export` and `report`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from pskd.errors import PskdError
from pskd.workbench.api import export as export_run
from pskd.workbench.api import need_workbench
from pskd.workbench.cli.options import AllowCode, Best, Json, RunPath, app, show


@app.command(epilog="Example:\n\n  pskd evaluate runs/digits-ps_kd-0 --json")
def evaluate(
    run: RunPath,
    split: Annotated[str, Option(help="test or val.")] = "test",
    root: Annotated[str | None, Option(help="Where the data is now, if it was moved (data.root).")] = None,
    best: Best = False,
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Evaluate a finished run's model again."""
    need_workbench()
    from pskd.workbench.report.tables import result_lines
    from pskd.workbench.use import evaluate as evaluate_run

    metrics = evaluate_run(run, split, root, best=best, allow_code=allow_code)
    show(json.dumps(metrics) if as_json else "\n".join(result_lines(metrics)))


@app.command(
    epilog="Examples:\n\n  pskd calibrate runs/mine\n\n  pskd calibrate runs/mine --root new/images --by-class"
)
def calibrate(
    run: RunPath,
    root: Annotated[str | None, Option(help="Data that is not trained on.  [default: the validation split]")] = None,
    split: Annotated[str, Option(help="Of the data named by --root: val or test.")] = "val",
    by_class: Annotated[
        bool, Option("--by-class", help="Classifiers: sets with this coverage for each class.")
    ] = False,
    delta: Annotated[float, Option(help="How likely predict may break its --max-risk.")] = 0.05,
    best: Best = False,
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Calibrate a finished run's model: the result is saved beside its weights for `pskd predict`."""
    need_workbench()
    from pskd.workbench.use import calibrate as calibrate_run

    if not 0 < delta < 1:
        raise PskdError(f"--delta must lie in (0, 1), got {delta:g}")
    options: dict[str, Any] = {"delta": delta, **({"by_class": True} if by_class else {})}
    calibration = calibrate_run(run, root, split=split, best=best, allow_code=allow_code, **options)
    show(json.dumps(calibration.to_dict()) if as_json else "\n".join(calibration.lines()))


@app.command(epilog="Example:\n\n  pskd ensemble runs/digits-ps_kd-0 runs/digits-ps_kd-1 runs/digits-ps_kd-2")
def ensemble(
    runs: Annotated[list[Path], Argument(metavar="RUN RUN...", help="Finished runs on the same test set.")],
    bins: Annotated[int, Option(min=1, max=1_000_000, help="Bins of the ECE.")] = 10,
    as_json: Json = False,
) -> None:
    """Average the predictions of several runs."""
    need_workbench()
    from pskd.workbench.report.ensembles import ensemble as average
    from pskd.workbench.report.tables import comparison

    results = average(runs, bins)
    if as_json:
        show(json.dumps(results["ensemble"]))
    else:
        show("\n".join([*comparison(results), f"(ECE with {bins} bins; * is the best of a column)"]))


@app.command(
    epilog="Examples:\n\n"
    "  pskd export runs/mine --format onnx --out mine.onnx --calibrated --with-preprocessing\n\n"
    "  pskd export runs/mine --format hub --out mine-hub"
)
def export(
    run: RunPath,
    form: Annotated[str, Option("--format", help="onnx, pt2 (torch.export), or hub: a folder to publish.")],
    out: Annotated[Path, Option("--out", metavar="FILE|DIR", help="What to write; it must not exist yet.")],
    calibrated: Annotated[bool, Option("--calibrated", help="Include the temperature of pskd calibrate.")] = False,
    preprocessing: Annotated[bool, Option("--with-preprocessing", help="Input is uint8 images (N, H, W, C).")] = False,
    best: Best = False,
    allow_code: AllowCode = False,
) -> None:
    """Write a finished run's model for other programs, and check what was written."""
    options = {"calibrated": calibrated, "preprocessing": preprocessing, "best": best, "allow_code": allow_code}
    show(export_run(run, form, out, **options))


@app.command(
    epilog="Examples:\n\n"
    "  pskd report runs/digits-study\n\n"
    "  pskd report runs/plain runs/ps_kd -o report.html --figures figures --tables tables --samples 17,42"
)
def report(
    paths: Annotated[list[Path], Argument(metavar="RUN|STUDY...", help="Finished runs, and studies' folders.")],
    out: Annotated[Path, Option("--out", "-o", help="The page.")] = Path("report.html"),
    figures: Annotated[Path | None, Option(help="Also save each figure in this folder: SVG, PDF and PNG.")] = None,
    tables: Annotated[Path | None, Option(help="Also save each table: CSV, LaTeX, Markdown, and runs.csv.")] = None,
    samples: Annotated[str, Option(metavar="N,N...", help="Test samples.  [default: those that differ most]")] = "",
) -> None:
    """Write one page about runs and studies: comparison, calibration, training, samples."""
    need_workbench()
    from pskd.workbench.report.page import report as write

    numbers = [part.strip() for part in samples.split(",")] if samples else []
    if wrong := [number for number in numbers if not number.isdecimal()]:
        raise PskdError(f"--samples: {wrong[0]!r} is not a sample's number; write for example --samples 17,42")
    show("report:", *write(paths, out, figures, tables, [int(number) for number in numbers], show))
