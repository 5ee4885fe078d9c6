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

# Some versions of typer bring their own click, others import it: this is the one in use.
_UsageError: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object a line, for machines.")]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]


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
    from pskd.config import describe, differences, resolve
    from pskd.recipes import read_recipe

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
    if words or not resume:
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
    from pskd.engine.use import evaluate as evaluate_run
    from pskd.report.tables import result_lines

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
    text: Annotated[list[str] | None, typer.Option(help="A sentence to translate; may be given several times.")] = None,
    as_json: Json = False,
) -> None:
    """Classify images: the likeliest classes and their probabilities. Or translate text."""
    _need_workbench()
    from pskd import tasks

    broken = 0
    for item in tasks.predict(run, inputs or [], top=top, texts=text or []):
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
    from pskd.report.ensemble import ensemble as average
    from pskd.report.tables import PAPER_COLUMNS, comparison

    results = average(runs, bins)
    if as_json:
        print(json.dumps(results["ensemble"]))
    else:
        print("\n".join([*comparison(results, PAPER_COLUMNS), f"(ECE with {bins} bins; * is the best of a column)"]))


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

    missing = [
        name
        for name in ("accelerate", "safetensors", "sklearn", "torchvision", "transformers")
        if find_spec(name) is None
    ]
    if missing:
        raise PskdError(f"this command needs {', '.join(missing)}: pip install 'pskd[workbench]'")
