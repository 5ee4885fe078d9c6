"""`pskd evaluate`, `pskd predict`, `pskd ensemble` and `pskd report`: finished runs put to work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from pskd.cli.options import AllowCode, Best, Json, RunPath, app, need_workbench, show
from pskd.errors import PskdError, folded


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
    from pskd.report.tables import result_lines
    from pskd.use import evaluate as evaluate_run

    metrics = evaluate_run(run, split, root, best=best, allow_code=allow_code)
    show(json.dumps(metrics) if as_json else "\n".join(result_lines(metrics)))


@app.command(
    epilog="Examples:\n\n"
    "  pskd predict runs/mine photo.jpg scans/*.png --json\n\n"
    '  pskd predict runs/translation-numbers-ps_kd-0 --text "siebzehntausendvier"\n\n'
    "  pskd predict runs/mine german.txt > english.txt"
)
def predict(
    run: RunPath,
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE...",
            help="Images of any size and mode; or texts, translated line by line (- or nothing: what is piped in).",
        ),
    ] = None,
    top: Annotated[int | None, typer.Option(min=1, help="Classifiers: how many classes to show.  [default: 5]")] = None,
    min_score: Annotated[
        float | None, typer.Option(min=0, max=1, help="Detectors: the least score to show.  [default: 0.5]")
    ] = None,
    draw: Annotated[
        Path | None, typer.Option(help="Detectors: the folder for drawings of the boxes.  [default: RUN/drawn]")
    ] = None,
    text: Annotated[
        list[str] | None, typer.Option(help="Translators: a sentence to translate; may be given several times.")
    ] = None,
    best: Best = False,
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Classify images, find the objects on them (as JSON, and drawn into PNG files), or translate text."""
    need_workbench()
    from pskd.use import predict as answers

    broken = 0
    options = {"top": top, "min_score": min_score, "draw": draw, "texts": text or None}
    for item in answers(run, inputs or [], best=best, allow_code=allow_code, **options):
        if not isinstance(item, PskdError):
            show(json.dumps(item.to_dict()) if as_json else item.text())
        else:
            broken += 1
            show(json.dumps({"error": str(item)}) if as_json else f"pskd: {folded(item)}", error=not as_json)
    if broken:
        raise typer.Exit(2)


@app.command(epilog="Example:\n\n  pskd ensemble runs/digits-ps_kd-0 runs/digits-ps_kd-1 runs/digits-ps_kd-2")
def ensemble(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN RUN...", help="Finished runs on the same test set.")],
    bins: Annotated[int, typer.Option(min=1, max=1_000_000, help="Bins of the ECE.")] = 10,
    as_json: Json = False,
) -> None:
    """Average the predictions of several runs."""
    need_workbench()
    from pskd.analysis.ensembles import ensemble as average
    from pskd.report.tables import comparison

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
    tables: Annotated[Path | None, typer.Option(help="Also save each table there: CSV, LaTeX and Markdown.")] = None,
    samples: Annotated[
        str, typer.Option(metavar="N,N...", help="Test samples to compare.  [default: those that differ most]")
    ] = "",
) -> None:
    """Make one page about runs and studies: comparison, calibration, training, samples."""
    need_workbench()
    from pskd.report.page import report as write

    numbers = [part.strip() for part in samples.split(",")] if samples else []
    if wrong := [number for number in numbers if not number.isdecimal()]:
        raise PskdError(f"--samples: {wrong[0]!r} is not a sample's number; write for example --samples 17,42")
    show("report:", *write(paths, out, figures, tables, [int(number) for number in numbers], show))
