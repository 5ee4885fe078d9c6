"""The command line: parse, call, print. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any, NoReturn

import typer

from pskd import __version__
from pskd.cli import export, predict, recipes, study, train, use  # noqa: F401  # their commands
from pskd.cli.options import app, show
from pskd.errors import PskdError

# Some versions of typer bring their own click, others import it: this is the one in use.
_UsageError: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        show(f"pskd {__version__}")
        raise typer.Exit


def main() -> NoReturn:
    """Run a command; what a user can put right ends in one line and exit code 2."""
    try:
        code = app(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            show(error.format_message())
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
    show("pskd:", message.replace("\n", " "), error=True)
    sys.exit(2)
