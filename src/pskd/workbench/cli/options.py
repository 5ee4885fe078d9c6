"""What the commands share: the application, options, and a word where a part of the workbench is missing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

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

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object a line, for machines.")]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
StudyPath = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a study.")]
Best = Annotated[bool, typer.Option("--best", help="The weights of the best epoch by the validation split.")]
AllowCode = Annotated[
    bool,
    typer.Option("--allow-code", help="Import code that the folder itself names; only for folders you trust."),
]
Storage = Annotated[
    str | None,
    typer.Option(
        envvar="PSKD_STORAGE",
        help="The queue: an Optuna URL, such as postgresql+psycopg://user@host/name.  [default: a file in the folder]",
    ),
]

Patience = Annotated[
    float,
    typer.Option(min=0, max=100_000, metavar="MINUTES", help="How long workers wait for a database that is away."),
]


def show(*words: object, error: bool = False) -> None:
    """Print a line or several: all that commands say goes through here."""
    print(printable(" ".join(map(str, words))), file=sys.stderr if error else sys.stdout, flush=True)


def out_option(text: str) -> Any:
    """The option --out with this help; an empty name, which would be the current folder, is refused."""

    def folder(name: str) -> Path:
        if not name.strip():
            raise PskdError("--out is empty: name a folder")
        return Path(name)

    return typer.Option(parser=folder, metavar="DIR", help=text)
