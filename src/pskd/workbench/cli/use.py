"""`pskd evaluate`, `pskd calibrate`, `pskd ensemble` and `pskd report`: finished runs put to work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from pskd.errors import PskdError
from pskd.workbench.api import need_workbench
from pskd.workbench.cli.options import AllowCode, Best, Json, RunPath, app, show


@app.command(epilog="Example:\n\n  pskd evaluate runs/digits-ps_kd-0 --json")
def evaluate(
    run: RunPath,
    split: Annotated[str, typer.Option(help="test or val.")] = "test",
    root: Annotated[str | None, typer.Option(help="Where the data is now, if it has moved (data.root).")] = None,
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
    root: Annotated[
        str | None, typer.Option(help="Data that the run was not trained on.  [default: its validation split]")
    ] = None,
    split: Annotated[str, typer.Option(help="Of the data named by --root: val or test.")] = "val",
    by_class: Annotated[
        bool, typer.Option("--by-class", help="Classifiers: sets whose coverage holds for every class by itself.")
    ] = False,
    delta: Annotated[float, typer.Option(help="The probability that --max-risk of predict is not kept.")] = 0.05,
    best: Best = False,
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Find out how sure a finished run's model may be, and keep it beside its weights for `pskd predict`."""
    need_workbench()
    from pskd.workbench.use import calibrate as calibrate_run

    if not 0 < delta < 1:
        raise PskdError(f"--delta must lie in (0, 1), got {delta:g}")
    options: dict[str, Any] = {"delta": delta, **({"by_class": True} if by_class else {})}
    found = calibrate_run(run, root, split=split, best=best, allow_code=allow_code, **options)
    show(json.dumps(found.to_dict()) if as_json else "\n".join(found.lines()))


@app.command(epilog="Example:\n\n  pskd ensemble runs/digits-ps_kd-0 runs/digits-ps_kd-1 runs/digits-ps_kd-2")
def ensemble(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN RUN...", help="Finished runs on the same test set.")],
    bins: Annotated[int, typer.Option(min=1, max=1_000_000, help="Bins of the ECE.")] = 10,
    as_json: Json = False,
) -> None:
    """Average the predictions of several runs."""
    need_workbench()
    from pskd.workbench.analysis.ensembles import ensemble as average
    from pskd.workbench.report.tables import comparison

    results = average(runs, bins)
    if as_json:
        show(json.dumps(results["ensemble"]))
    else:
        show("\n".join([*comparison(results), f"(ECE with {bins} bins; * is the best of a column)"]))


@app.command(
    epilog="Examples:\n\n"
    "  pskd report runs/digits-study\n\n"
    "  pskd report runs/plain runs/ps_kd -o report.html --figures figures --tables tables --samples 17,42"
)
def report(
    paths: Annotated[list[Path], typer.Argument(metavar="RUN|STUDY...", help="Finished runs, and studies' folders.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The page.")] = Path("report.html"),
    figures: Annotated[Path | None, typer.Option(help="Also save each figure there: SVG, PDF and PNG.")] = None,
    tables: Annotated[
        Path | None, typer.Option(help="Also save each table there: CSV, LaTeX and Markdown; all runs in runs.csv.")
    ] = None,
    samples: Annotated[
        str, typer.Option(metavar="N,N...", help="Test samples to compare.  [default: those that differ most]")
    ] = "",
) -> None:
    """Make one page about runs and studies: comparison, calibration, training, samples."""
    need_workbench()
    from pskd.workbench.report.page import report as write

    numbers = [part.strip() for part in samples.split(",")] if samples else []
    if wrong := [number for number in numbers if not number.isdecimal()]:
        raise PskdError(f"--samples: {wrong[0]!r} is not a sample's number; write for example --samples 17,42")
    show("report:", *write(paths, out, figures, tables, [int(number) for number in numbers], show))
