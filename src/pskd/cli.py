"""The command line: parse, call, print. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from pskd import __version__
from pskd.errors import PskdError

app = typer.Typer(
    name="pskd",
    help="Train models that are more accurate and know how sure they are.",
    epilog="First run: pskd train digits",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
recipes_app = typer.Typer(
    help="Ready-made settings: list them, look at one, copy one to start your own.", no_args_is_help=True
)
app.add_typer(recipes_app, name="recipes")
study_app = typer.Typer(
    help="Many runs as one: methods x models x seeds, on one machine or many.", no_args_is_help=True
)
app.add_typer(study_app, name="study")

# Some versions of typer bring their own click, others import it: this is the one in use.
_UsageError: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object a line, for machines.")]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
StudyPath = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a study.")]
Storage = Annotated[
    str | None,
    typer.Option(
        envvar="PSKD_STORAGE",
        help="The queue: an Optuna URL, such as postgresql+psycopg://user@host/name.  [default: a file in the folder]",
    ),
]


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        print(f"pskd {__version__}")
        raise typer.Exit


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
    out: Annotated[Path | None, typer.Option(help="The run folder.  [default: runs/RECIPE-METHOD-SEED]")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where the run in --out was stopped.")] = False,
    settings: Annotated[bool, typer.Option("--settings", help="List every setting with its default and exit.")] = False,
) -> None:
    """Train a model and evaluate it."""
    from pskd.config import changed, describe, differences, resolve
    from pskd.recipes import read_recipe
    from pskd.runs.folder import RunFolder

    if settings:
        print("\n".join(describe()))
        return

    words = words or []
    overrides = [word for word in words if "=" in word]
    names = [word for word in words if "=" not in word]
    if len(names) > 1:
        raise PskdError(f"{names[1]!r} is a second recipe: give one, and settings as key=value")
    if resume and out is None:
        raise PskdError("--resume needs --out: the folder of the run to go on with")
    config = None
    if resume and out is not None and words and not names:
        config = changed(RunFolder(out).config(), overrides)
    elif words or not resume:
        if not names:
            raise PskdError("which recipe? for example: pskd train digits (pskd recipes ls lists them)")
        own_file = names[0].endswith((".yaml", ".yml"))
        recipe, name = read_recipe(names[0]), Path(names[0]).stem if own_file else names[0]
        config = resolve(recipe, overrides, name=name)
        if config.scale == "laptop":
            full = resolve(recipe, [*overrides, "scale=full"], name=name)
            print("scale=laptop changes", *differences(full, config), sep="\n  ")
        out = out or Path("runs") / f"{config.recipe}-{config.method.name}-{config.train.seed}".replace("/", "-")
    assert out is not None
    _need_workbench()
    from pskd.engine.loop import Interrupted
    from pskd.engine.loop import train as run
    from pskd.report.tables import result_lines

    try:
        result = run(config, out, resume=resume)
    except Interrupted as stop:
        print(stop, file=sys.stderr)
        raise typer.Exit(stop.exit_code) from None
    if int(os.environ.get("RANK", "0")) == 0:
        print("\n".join(["", *result_lines(result), f"run folder: {out}"]))


@app.command(epilog="Example:\n\n  pskd evaluate runs/digits-ps_kd-0 --json")
def evaluate(
    run: RunPath,
    split: Annotated[str, typer.Option(help="test or val.")] = "test",
    root: Annotated[str | None, typer.Option(help="Where the data is now, if it has moved (data.root).")] = None,
    as_json: Json = False,
) -> None:
    """Evaluate a finished run's model again."""
    _need_workbench()
    from pskd.report.tables import result_lines
    from pskd.use.evaluate import evaluate as evaluate_run

    metrics = evaluate_run(run, split, root)
    print(json.dumps(metrics) if as_json else "\n".join(result_lines(metrics)))


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
    top: Annotated[int, typer.Option(min=1, help="How many classes of an image to show.")] = 5,
    min_score: Annotated[float, typer.Option(min=0, max=1, help="Detectors: the least score to show.")] = 0.5,
    draw: Annotated[
        Path | None, typer.Option(help="Detectors: the folder for drawings of the boxes.  [default: RUN/drawn]")
    ] = None,
    text: Annotated[list[str] | None, typer.Option(help="A sentence to translate; may be given several times.")] = None,
    as_json: Json = False,
) -> None:
    """Classify images, find the objects on them (as JSON, and drawn into PNG files), or translate text."""
    _need_workbench()
    from pskd import tasks

    broken = 0
    options = {"top": top, "min_score": min_score, "draw": draw, "texts": text or []}
    for item in tasks.predict(run, inputs or [], **options):
        if not isinstance(item, PskdError):
            print(json.dumps(item.to_dict()) if as_json else item.text())
        else:
            broken += 1
            print(
                json.dumps({"error": str(item)}) if as_json else f"pskd: {item}",
                file=sys.stdout if as_json else sys.stderr,
            )
    if broken:
        raise typer.Exit(2)


@app.command(epilog="Example:\n\n  pskd ensemble runs/digits-ps_kd-0 runs/digits-ps_kd-1 runs/digits-ps_kd-2")
def ensemble(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN RUN...", help="Finished runs on the same test set.")],
    bins: Annotated[int, typer.Option(min=1, help="Bins of the ECE.")] = 10,
    as_json: Json = False,
) -> None:
    """Average the predictions of several runs."""
    _need_workbench()
    from pskd.analysis.ensembles import ensemble as average
    from pskd.report.tables import comparison

    results = average(runs, bins)
    if as_json:
        print(json.dumps(results["ensemble"]))
    else:
        print("\n".join([*comparison(results), f"(ECE with {bins} bins; * is the best of a column)"]))


@app.command(
    epilog="Examples:\n\n"
    "  pskd tune digits method.alpha=0.0:1.0:0.1\n\n"
    "  pskd tune digits method=cs_kd method.temperature=1..20 method.weight=0.1,0.5,1,2,4 --random 5 --by nll"
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
    out: Annotated[Path | None, typer.Option(help="The folder of the search.  [default: runs/tune-RECIPE]")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each setting.")] = 3,
    trials: Annotated[int | None, typer.Option("--random", min=1, help="Draw so many settings at random.")] = None,
    by: Annotated[str, typer.Option(help="A metric; or accuracy and calibration together.")] = "top1_error+ece",
    prune: Annotated[bool, typer.Option("--prune", help="Give up runs that are worse than the median.")] = False,
    workers: Annotated[int | None, typer.Option(min=1, help="How many runs to train at a time.")] = None,
    storage: Storage = None,
) -> None:
    """Search settings on a validation split, then train with the best on everything and test once."""
    _need_workbench()
    from pskd.report.page import report as write
    from pskd.study.ranges import parse
    from pskd.study.tune import tune as run

    out = out or Path("runs") / f"tune-{recipe.removesuffix('.yaml').replace('/', '-')}"
    found = [(word, parse(word)) for word in words]
    ranges, settings = [each for _, each in found if each is not None], [word for word, each in found if each is None]
    options: dict[str, Any] = {"seeds": seeds, "trials": trials, "by": by, "prune": prune, "workers": workers}
    try:
        run(recipe, ranges, settings, out, storage=storage, say=lambda line: print(line, flush=True), **options)
    except KeyboardInterrupt:
        print("stopped; the same command goes on where it was", file=sys.stderr)
        raise typer.Exit(130) from None
    print("report:", *write([out / "final", out / "search"], out / "report.html"))


@app.command(
    epilog="Examples:\n\n"
    "  pskd report runs/digits-study\n\n"
    "  pskd report runs/plain runs/ps_kd -o report.html --figures figures --tables tables"
)
def report(
    paths: Annotated[list[Path], typer.Argument(metavar="RUN|STUDY...", help="Finished runs, and studies' folders.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The page.")] = Path("report.html"),
    figures: Annotated[Path | None, typer.Option(help="Also save each figure there: SVG, PDF and PNG.")] = None,
    tables: Annotated[Path | None, typer.Option(help="Also save each table there: CSV, LaTeX and Markdown.")] = None,
) -> None:
    """Make one page about runs and studies: comparison, calibration, training, samples."""
    _need_workbench()
    from pskd.report.page import report as write

    print("report:", *write(paths, out, figures, tables))


@study_app.command(
    "run",
    epilog="Examples:\n\n"
    "  pskd study run studies/digits --out runs/digits-study\n\n"
    "  pskd study run studies/table1 --out runs/table1 data.root=DIR scale=laptop model=ResNet-18 seed=0,1",
)
def study_run(
    name: Annotated[str, typer.Argument(metavar="STUDY|FILE.yaml", help="A study (pskd recipes ls lists them).")],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="Changes in every cell, in those of one recipe (RECIPE:KEY=VALUE), or a choice of an axis's values.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The study's folder.  [default: runs/STUDY]")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="How many cells to train at a time.")] = None,
    storage: Storage = None,
) -> None:
    """Train all cells of a study that are not done yet, and make its page."""
    _need_workbench()
    from pskd.report.page import report as write
    from pskd.study.cells import Study
    from pskd.study.worker import run

    out = out or Path("runs") / name.removesuffix(".yaml").replace("/", "-")
    study = Study.begin(name, words or [], out)
    try:
        complete = run(study, workers, storage, lambda line: print(line, flush=True))
    except KeyboardInterrupt:
        print("stopped; the same command goes on where it was", file=sys.stderr)
        raise typer.Exit(130) from None
    print("report:", *write([out], out / "report.html"))
    if not complete:
        raise typer.Exit(1)


@study_app.command("work", epilog="Example:\n\n  pskd study work runs/digits-study")
def study_work(folder: StudyPath, storage: Storage = None) -> None:
    """Join a study as one more worker, from this machine or another that sees the same folder."""
    _need_workbench()
    from pskd.study.cells import Study
    from pskd.study.queue import Queue
    from pskd.study.worker import Worker

    Worker(Queue(Study.load(folder), storage)).work()


@study_app.command("status", epilog="Example:\n\n  pskd study status runs/digits-study")
def study_status(folder: StudyPath, storage: Storage = None) -> None:
    """Say which cells are done, running, waiting or failed, and how long it will take."""
    _need_workbench()
    from pskd.study.cells import Study
    from pskd.study.queue import Queue
    from pskd.study.worker import status_lines

    print("\n".join(status_lines(Queue(Study.load(folder), storage))))


@study_app.command("stop", epilog="Example:\n\n  pskd study stop runs/digits-study")
def study_stop(folder: StudyPath, storage: Storage = None) -> None:
    """Ask all workers of a study, on all machines, to save their cells and leave."""
    _need_workbench()
    from pskd.study.cells import Study
    from pskd.study.queue import Queue

    Queue(Study.load(folder), storage).stop()
    print("the workers save their cells and leave; pskd study run goes on where they were")


@recipes_app.command("ls")
def recipes_ls() -> None:
    """List the recipes."""
    from pskd.recipes import listing

    print("\n".join(listing()))


@recipes_app.command("show", epilog="Example:\n\n  pskd recipes show digits")
def recipes_show(name: Annotated[str, typer.Argument(metavar="RECIPE")]) -> None:
    """Print a recipe."""
    from pskd.recipes import find

    print(find(name).read_text(), end="")


@recipes_app.command("copy", epilog="Example:\n\n  pskd recipes copy digits mine.yaml && pskd train mine.yaml")
def recipes_copy(
    name: Annotated[str, typer.Argument(metavar="RECIPE")],
    to: Annotated[Path, typer.Argument(metavar="FILE", help="Where to; it must not exist yet.")],
) -> None:
    """Copy a recipe to a file of your own."""
    from pskd.recipes import find

    text = find(name).read_text()
    try:
        with to.open("x") as file:
            file.write(text)
    except FileExistsError:
        raise PskdError(f"{to} exists already: choose another name") from None
    except OSError as error:
        raise PskdError(f"{to} cannot be written: {error.strerror}") from None
    print(f"copied to {to}; train it with: pskd train {to}")


def main() -> NoReturn:
    """Run a command; what a user can put right ends in one line and exit code 2."""
    try:
        code = app(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message())
            sys.exit(0)
        _fail(f"{error.format_message()} (see pskd --help)")
    except PskdError as error:
        _fail(str(error))
    except (typer.Abort, KeyboardInterrupt):
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _fail(message: str) -> NoReturn:
    print(f"pskd: {message}", file=sys.stderr)
    sys.exit(2)


def _need_workbench() -> None:
    from importlib.util import find_spec

    needed = (
        *("accelerate", "jinja2", "matplotlib", "optuna", "pycocotools", "sacrebleu", "safetensors", "sklearn"),
        *("tokenizers", "torchvision", "transformers"),
    )
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        raise PskdError(f"this command needs {', '.join(missing)}: pip install 'pskd[workbench]'")
