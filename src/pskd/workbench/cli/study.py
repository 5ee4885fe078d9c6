"""`pskd study run|work|status|stop`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from pskd.errors import PskdError
from pskd.workbench.api import need_workbench
from pskd.workbench.cli.ending import same_command_continues
from pskd.workbench.cli.options import AllowCode, Patience, Storage, StudyPath, app, out_option, show

if TYPE_CHECKING:
    from pskd.workbench.study.queue import Queue

study_app = typer.Typer(help="Many runs: methods x models x seeds, on one machine or many.", no_args_is_help=True)
app.add_typer(study_app, name="study")


@study_app.command(
    "run",
    epilog="Examples:\n\n"
    "  pskd study run studies/digits --out runs/digits-study\n\n"
    "  pskd study run studies/table1 --out runs/table1 data.root=DIR scale=laptop model=ResNet-18 seed=0,1",
)
def study_run(
    name: Annotated[str, Argument(metavar="STUDY|FILE.yaml", help="A study (pskd recipes ls lists them).")],
    words: Annotated[
        list[str] | None,
        Argument(
            metavar="[KEY=VALUE]...",
            help="Changes in every cell, in those of one recipe (RECIPE:KEY=VALUE), or a choice of an axis's values.",
        ),
    ] = None,
    out: Annotated[Path | None, out_option("The study's folder.  [default: runs/STUDY]")] = None,
    workers: Annotated[int | None, Option(min=1, help="How many cells to train at the same time.")] = None,
    storage: Storage = None,
    patience: Patience = 10.0,
) -> None:
    """Train all cells of a study that are not done yet, and write its report."""
    need_workbench()
    from pskd.workbench.report.page import report as write
    from pskd.workbench.study.cells import Study
    from pskd.workbench.study.worker import run

    out = out or Path("runs") / name.removesuffix(".yaml").replace("/", "-")
    study = Study.begin(name, words or [], out)
    with same_command_continues():
        complete = run(study, workers, storage, show, 60 * patience)
    show("report:", *write([out], out / "report.html"))
    if not complete:
        raise PskdError(
            f"some cells have failed: pskd study status {out} lists them; the same command trains them again"
        )


@study_app.command("work", epilog="Example:\n\n  pskd study work runs/digits-study")
def study_work(
    folder: StudyPath, storage: Storage = None, allow_code: AllowCode = False, patience: Patience = 10.0
) -> None:
    """Join a study as one more worker, from this machine or another that sees the same folder."""
    need_workbench()
    from pskd.workbench.study.cells import Study
    from pskd.workbench.study.queue import Queue
    from pskd.workbench.study.worker import Worker

    study = Study.load(folder, allow_code=allow_code)
    Worker(Queue(study, storage, patience=60 * patience, waits=True, say=show), show).work()


@study_app.command("status", epilog="Example:\n\n  pskd study status runs/digits-study")
def study_status(folder: StudyPath, storage: Storage = None) -> None:
    """Show which cells are done, running, waiting or failed, and how long the rest will take."""
    queue = _open_queue(folder, storage)
    from pskd.workbench.study.worker import status_lines

    show("\n".join(status_lines(queue)))


@study_app.command("stop", epilog="Example:\n\n  pskd study stop runs/digits-study")
def study_stop(folder: StudyPath, storage: Storage = None) -> None:
    """Ask all workers of a study, on all machines, to save their cells and stop."""
    _open_queue(folder, storage).stop()
    show("the workers save their cells and stop; pskd study run continues them")


def _open_queue(folder: Path, storage: str | None) -> Queue:
    need_workbench()
    from pskd.workbench.study.cells import Study
    from pskd.workbench.study.queue import Queue

    return Queue(Study.load(folder), storage, say=show)
