"""`pskd train` and `pskd tune`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pskd.errors import PskdError
from pskd.workbench.api import LOADING, default_folder, need_workbench
from pskd.workbench.api import settings as chosen
from pskd.workbench.cli.ending import INTERRUPTED, leave
from pskd.workbench.cli.options import AllowCode, Storage, app, out_option, show
from pskd.workbench.train.progress import print_if_slow


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
        typer.Argument(
            metavar="[RECIPE|FILE.yaml] [KEY=VALUE]...", help="Settings to start from, and changes to them."
        ),
    ] = None,
    out: Annotated[Path | None, out_option("The run folder.  [default: runs/RECIPE-METHOD-SEED]")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where the run in --out was stopped.")] = False,
    settings: Annotated[bool, typer.Option("--settings", help="List every setting with its default and exit.")] = False,
    allow_code: AllowCode = False,
) -> None:
    """Train a model and evaluate it."""
    if settings:
        from pskd.workbench.config import describe

        show("\n".join(describe()))
        return

    if resume and out is None:
        raise PskdError("--resume needs --out: the folder of the run to go on with")
    with print_if_slow(LOADING):
        config, overrides = chosen(words or [], resume=resume)
        need_workbench()
        from pskd.workbench.config import differences
        from pskd.workbench.report.tables import result_lines
        from pskd.workbench.runs.group import own_rank
        from pskd.workbench.train.loop import Interrupted
        from pskd.workbench.train.loop import train as run

    if config is not None:
        if config.scale == "laptop":
            full, _ = chosen([*(words or []), "scale=full"])
            assert full is not None
            show("\n  ".join(["scale=laptop changes", *differences(full, config)]))
        out = out or default_folder(config)
    assert out is not None
    try:
        result = run(config, out, resume=resume, allow_code=allow_code, changes=overrides)
    except Interrupted as stop:
        leave(stop.exit_code, str(stop))
    if own_rank() == 0:
        show("\n".join(["", *result_lines(result), f"run folder: {out}"]))


@app.command(
    epilog="Examples:\n\n"
    "  pskd tune digits method.alpha=0.0:1.0:0.1\n\n"
    "  pskd tune digits method=cs_kd method.temperature=1..20 method.lam=0.1,0.5,1,2,4 --random 5 --by nll"
)
def tune(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE|FILE.yaml", help="Settings to start from.")],
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY=RANGE... [KEY=VALUE]...",
            help="What to search: low:high:step, first..last, value,value or, with --random, low~high. And changes.",
        ),
    ],
    out: Annotated[Path | None, out_option("The folder of the search.  [default: runs/tune-RECIPE]")] = None,
    seeds: Annotated[int, typer.Option(min=1, max=10_000, help="Runs of each setting.")] = 3,
    trials: Annotated[int | None, typer.Option("--random", min=1, max=10_000, help="Draw so many at random.")] = None,
    by: Annotated[str, typer.Option(help="A metric; or accuracy and calibration together.")] = "top1_error+ece",
    prune: Annotated[bool, typer.Option("--prune", help="Give up runs that are worse than the median.")] = False,
    workers: Annotated[int | None, typer.Option(min=1, help="How many runs to train at a time.")] = None,
    storage: Storage = None,
) -> None:
    """Search settings on a validation split, then train with the best on everything and test once."""
    need_workbench()
    from pskd.workbench.report.page import report as write
    from pskd.workbench.study.ranges import parse
    from pskd.workbench.study.tune import tune as run

    out = out or Path("runs") / f"tune-{recipe.removesuffix('.yaml').replace('/', '-')}"
    found = [(word, parse(word)) for word in words]
    ranges, settings = [each for _, each in found if each is not None], [word for word, each in found if each is None]
    options: dict[str, Any] = {"seeds": seeds, "trials": trials, "by": by, "prune": prune, "workers": workers}
    try:
        run(recipe, ranges, settings, out, storage=storage, say=show, **options)
    except KeyboardInterrupt:
        leave(INTERRUPTED, "stopped; the same command goes on where it was")
    show("report:", *write([out / "final", out / "search"], out / "report.html"))
