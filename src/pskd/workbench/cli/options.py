"""What the commands share: the application, options, and printing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from pskd.errors import PskdError, printable

app = typer.Typer(
    name="pskd",
    help="Train models that know how sure they are.",
    epilog="First run: pskd train digits",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Json = Annotated[bool, Option("--json", help="Print one JSON object a line, for machines.")]
RunPath = Annotated[Path, Argument(metavar="RUN", help="A run folder.")]
StudyPath = Annotated[Path, Argument(metavar="DIR", help="The folder of a study.")]
Best = Annotated[bool, Option("--best", help="The weights of the best epoch by the validation split.")]
AllowCode = Annotated[bool, Option("--allow-code", help="Import code that the folder names; only if you trust it.")]
_queue = "The queue: an Optuna URL, such as postgresql+psycopg://user@host/name.  [default: a file in the folder]"
Storage = Annotated[str | None, Option(envvar="PSKD_STORAGE", help=_queue)]
_wait = "How long workers wait for a database that cannot be reached."
Patience = Annotated[float, Option(min=0, max=100_000, metavar="MINUTES", help=_wait)]


def show(*words: object, error: bool = False) -> None:
    """Print lines; all output of commands goes through here."""
    print(printable(" ".join(map(str, words))), file=sys.stderr if error else sys.stdout, flush=True)


def out_option(text: str) -> Any:
    """The option --out with this help. An empty name is refused: it would be the current folder."""

    def folder(name: str) -> Path:
        if not name.strip():
            raise PskdError("--out is empty: name a folder")
        return Path(name)

    return Option(parser=folder, metavar="DIR", help=text)
