"""The command line: parse, call, print. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import sys
import warnings
from typing import Annotated, Any, NoReturn

import typer

from pskd import __version__
from pskd.errors import PskdError
from pskd.workbench.cli import predict, recipes, study, train, use  # noqa: F401  # their commands
from pskd.workbench.cli.ending import INTERRUPTED, exit_on_error, leave
from pskd.workbench.cli.options import app, show

# Some versions of typer contain a copy of click, others import it: this is the one in use.
_UsageError: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        show(f"pskd {__version__}")
        raise typer.Exit


def main() -> NoReturn:
    """Run a command; an error of the user ends in one line and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # for terminals that cannot show a letter
    if not sys.warnoptions:
        warnings.simplefilter("ignore")  # those of other libraries are meant for programmers
    try:
        with exit_on_error():
            _run()
    except KeyboardInterrupt:  # it came while the command was ending by itself
        leave(INTERRUPTED, "stopped")
    raise AssertionError  # every command exits


def _run() -> NoReturn:
    try:
        code = app(standalone_mode=False)
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            show(error.format_message())
            leave(0)
        context = getattr(error, "ctx", None)
        command = "pskd" if context is None else context.command_path
        raise PskdError(f"{error.format_message().removesuffix('.')} (see {command} --help)") from None
    except typer.Abort:
        raise KeyboardInterrupt from None
    if code == INTERRUPTED:  # typer returns it after a Ctrl-C
        raise KeyboardInterrupt
    sys.exit(code if isinstance(code, int) else 0)
