"""`pskd train` and `pskd tune`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from pskd.workbench.api import need_workbench
from pskd.workbench.api import train as train_model
from pskd.workbench.cli.ending import same_command_continues
from pskd.workbench.cli.options import AllowCode, Storage, app, out_option, show


@app.command(
    epilog="Examples:\n\n"
    "  pskd train digits\n\n"
    "  pskd train digits method=hard epochs=10 --out runs/plain\n\n"
    "  pskd train folder data.root=my/images --out runs/mine\n\n"
    "  pskd train --resume --out runs/mine\n\n"
    "  pskd train --resume --out runs/mine data.root=moved/images\n\n"
    "  torchrun --nproc-per-node 2 -m pskd train digits --out runs/two"
)
def train(
    words: Annotated[
        list[str] | None,
        Argument(metavar="[RECIPE|FILE.yaml] [KEY=VALUE]...", help="Settings to start from, and changes to them."),
    ] = None,
    out: Annotated[Path | None, out_option("The run folder.  [default: runs/RECIPE-METHOD-SEED]")] = None,
    resume: Annotated[bool, Option("--resume", help="Continue the run in --out where it was stopped.")] = False,
    settings: Annotated[bool, Option("--settings", help="List every setting with its default and exit.")] = False,
    allow_code: AllowCode = False,
) -> None:
    """Train a model and evaluate it."""
    if settings:
        from pskd.workbench.config import describe

        show("\n".join(describe()))
        return

    run = train_model(*(words or []), out=out, resume=resume, allow_code=allow_code)
    from pskd.workbench.report.tables import result_lines
    from pskd.workbench.runs.group import own_rank

    if own_rank() == 0:
        show("\n".join(["", *result_lines(run.result), f"run folder: {run.path}"]))


@app.command(
    epilog="Examples:\n\n"
    "  pskd tune digits method.alpha=0.0:1.0:0.1\n\n"
    "  pskd tune digits optim.lr=0.01~1 method.alpha=0.0:1.0:0.1 --trials 20\n\n"
    "  pskd tune digits method=cs_kd method.temperature=1..20 method.lam=0.1,0.5,1,2,4 --random 5 --by nll"
)
def tune(
    recipe: Annotated[str, Argument(metavar="RECIPE|FILE.yaml", help="Settings to start from.")],
    words: Annotated[
        list[str],
        Argument(
            metavar="KEY=RANGE... [KEY=VALUE]...",
            help="What to search: low:high:step, first..last or value,value; with --trials or --random also low~high."
            " And changes of other settings.",
        ),
    ],
    out: Annotated[Path | None, out_option("The folder of the search.  [default: runs/tune-RECIPE]")] = None,
    seeds: Annotated[int, Option(min=1, max=10_000, help="Runs of each setting.")] = 3,
    trials: Annotated[int | None, Option(min=1, max=10_000, help="Let Optuna (TPE) choose so many.")] = None,
    draws: Annotated[int | None, Option("--random", min=1, max=10_000, help="Draw so many at random.")] = None,
    by: Annotated[str, Option(help="A metric; or accuracy and calibration together.")] = "top1_error+ece",
    prune: Annotated[bool, Option("--prune", help="Give up runs that are worse than the median.")] = False,
    workers: Annotated[int | None, Option(min=1, help="How many runs to train at a time.")] = None,
    storage: Storage = None,
) -> None:
    """Search settings on a validation split, then train with the best on everything and test once."""
    need_workbench()
    from pskd.workbench.report.page import report as write
    from pskd.workbench.study.ranges import parse
    from pskd.workbench.study.tune import tune as run

    out = out or Path("runs") / f"tune-{recipe.removesuffix('.yaml').replace('/', '-')}"
    ranges = {word: parsed for word in words if (parsed := parse(word)) is not None}
    settings = [word for word in words if word not in ranges]
    options: dict[str, Any] = {"seeds": seeds, "trials": trials, "draws": draws, "by": by, "prune": prune}
    with same_command_continues():
        run(recipe, list(ranges.values()), settings, out, workers=workers, storage=storage, say=show, **options)
    show("report:", *write([out / "final", out / "search"], out / "report.html"))
